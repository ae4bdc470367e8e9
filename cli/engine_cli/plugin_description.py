"""What a plugin says about itself, as plain data for a table or JSON."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

from engine.plugin import Plugin
from engine.registry import Claim
from engine.settings_schema import Schema, SettingField

_DESCRIBED = frozenset(
    {
        "NAME",
        "SUMMARY",
        "ALIASES",
        "OPTIONS",
        "NUMERICS",
        "STARTUP_COST",
        "DEVICES",
        "SETTINGS",
        "VERSION",
    }
)


def summary_of(plugin: Any) -> str:
    """Return one line: the declared summary, or the first line of what documents it."""
    text = getattr(plugin, "SUMMARY", None) or getattr(plugin, "help", None)
    if text is None and isinstance(plugin, list | tuple):
        return ", ".join(map(str, plugin))
    return (text or inspect.getdoc(plugin) or "").strip().partition("\n")[0]


def describe(claim: Claim, plugin: Any) -> dict[str, Any]:
    """Return everything that a plugin declares, and where it comes from."""
    content: dict[str, Any] = {
        "kind": claim.kind,
        "name": claim.name,
        "summary": summary_of(plugin),
        "distribution": f"{claim.distribution} {claim.version}",
        "entry_point": claim.entry_point.value,
        "file": _file_of(plugin),
    }
    if isinstance(plugin, type) and issubclass(plugin, Plugin):
        content["about"] = " ".join((inspect.getdoc(plugin) or "").split())
        content |= _declared(plugin)
    return content


def _declared(plugin: type[Plugin]) -> dict[str, Any]:
    others = {
        name.lower(): _plain(getattr(plugin, name))
        for name in dir(plugin)
        if name.isupper() and name not in _DESCRIBED
    }
    return {
        "aliases": list(plugin.ALIASES),
        "version": plugin.VERSION,
        "numerics": plugin.NUMERICS.value,
        "startup_cost": plugin.STARTUP_COST.value,
        "devices": sorted(plugin.DEVICES) if plugin.DEVICES is not None else ["any"],
        "settings_read": sorted(plugin.SETTINGS),
        "options": [_option(field) for field in Schema.of(plugin.OPTIONS).fields.values()],
        **others,
    }


def _option(field: SettingField) -> dict[str, Any]:
    kind = "|".join(field.choices) or getattr(field.type, "__name__", str(field.type))
    return {
        "name": field.name,
        "type": kind,
        "default": "required" if field.info.is_required() else _plain(field.default),
        "help": field.help,
    }


def _file_of(plugin: Any) -> str:
    try:
        return inspect.getsourcefile(plugin) or ""
    except TypeError:
        return ""


def _plain(value: Any) -> Any:
    """Turn a declared value into what JSON can hold."""
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, str | int | float) or value is None:
        return value
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return str(value)
