"""Checks a loaded plugin against the contract; every refusal says what to change.

`who` is how the plugin is called in messages: kind, name, distribution and module.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from engine.errors import BrokenPluginError
from engine.hookspecs import (
    API_VERSION,
    BASE_OF_KIND,
    HOOK_OF_KIND,
    OLDEST_API_VERSION,
    PROJECT,
    EngineSpec,
)
from engine.names import normalize

logger = logging.getLogger(__name__)


def check_module(who: str, module: Any) -> None:
    """Check that an entry point names a module, written for a contract that this engine speaks.

    Raises:
        BrokenPluginError: it doesn't.
    """
    if not isinstance(module, ModuleType):
        raise BrokenPluginError(
            f"{who} is no module but a {type(module).__name__}; its entry point must name the "
            "module that implements the hook, without `:attribute`."
        )
    wanted = getattr(module, "ENGINE_API_VERSION", None)
    if wanted is None:
        raise BrokenPluginError(
            f"{who} states no ENGINE_API_VERSION; add `ENGINE_API_VERSION = {API_VERSION}` to it."
        )
    first, last = _range_of(who, wanted)
    if last < OLDEST_API_VERSION or first > API_VERSION:
        spoken = sorted({OLDEST_API_VERSION, API_VERSION})
        raise BrokenPluginError(
            f"{who} was written for plugin API {wanted!r}, this engine speaks "
            f"{' to '.join(map(str, spoken))}; upgrade "
            f"{'the engine' if first > API_VERSION else 'the plugin'}."
        )
    if last < API_VERSION:
        logger.warning(
            "%s was written for plugin API %d; the current one is %d, and support for the older "
            "one will end: upgrade the plugin",
            who,
            last,
            API_VERSION,
        )


def _range_of(who: str, stated: Any) -> tuple[int, int]:
    """Return the first and last version that a plugin was written for.

    Raises:
        BrokenPluginError: it states neither a number nor two.
    """
    both = stated if isinstance(stated, tuple) else (stated, stated)
    numbers = [n for n in both if isinstance(n, int) and not isinstance(n, bool)]
    if len(both) != 2 or len(numbers) != 2 or numbers[0] > numbers[1]:
        raise BrokenPluginError(
            f"{who} states ENGINE_API_VERSION = {stated!r}; write the version that it was written "
            f"for ({API_VERSION}), or the first and the last of several, as (1, 2)."
        )
    return numbers[0], numbers[1]


def check_hooks(who: str, kind: str, functions: Iterable[tuple[str, Any]]) -> None:
    """Check the hooks that a module implements: all exist, none wants what it doesn't get.

    Args:
        who: the plugin, in messages.
        kind: the kind that its entry-point group names.
        functions: hook names with their implementations.

    Raises:
        BrokenPluginError: one doesn't exist, has an unknown argument, or the needed one is missing.
    """
    known = list(HOOK_OF_KIND.values())
    found = set()
    for name, function in functions:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the hooks are {', '.join(known)}."
            raise BrokenPluginError(f"{who} implements a hook {name}, which doesn't exist; {hint}")
        given = inspect.signature(getattr(EngineSpec, name)).parameters.keys() - {"self"}
        if unknown := [p for p in inspect.signature(function).parameters if p not in given]:
            raise BrokenPluginError(
                f"{who}: the hook {name} asks for {', '.join(unknown)}, but is called with "
                f"{', '.join(sorted(given)) or 'no arguments'}; remove what it isn't given."
            )
        found.add(name)
    if (needed := HOOK_OF_KIND[kind]) not in found:
        raise BrokenPluginError(
            f"{who} implements no hook {needed}; a plugin of the group {PROJECT}.{kind} must "
            "(decorated with @hookimpl)."
        )


def check_registered(who: str, kind: str, name: str, plugin: Any) -> None:
    """Check what a hook returned.

    Args:
        who: the plugin, in messages.
        kind: the kind that its entry-point group names.
        name: its entry point's name, normalized.
        plugin: what its hook returned.

    Raises:
        BrokenPluginError: it isn't what a plugin of that kind registers.
    """
    if (path := BASE_OF_KIND.get(kind)) is not None:
        _check_class(who, name, plugin, pkgutil.resolve_name(path))
    elif kind == "break_ops":
        names = [plugin] if isinstance(plugin, str) or not isinstance(plugin, Iterable) else plugin
        if bad := [op for op in names if not (isinstance(op, str) and "::" in op)]:
            raise BrokenPluginError(
                f"{who} registered {bad[0]!r}; its hook must return a list of operator names "
                "(`namespace::name`)."
            )
    elif not callable(plugin):
        raise BrokenPluginError(f"{who} registered {plugin!r}; its hook must return a callable.")


def _check_class(who: str, name: str, plugin: Any, base: type) -> None:
    if not (isinstance(plugin, type) and issubclass(plugin, base)):
        raise BrokenPluginError(
            f"{who} registered {plugin!r}; its hook must return a subclass of "
            f"{base.__module__}.{base.__name__}."
        )
    declared: Any = plugin
    if missing := [a for a in ("NAME", "SUMMARY") if not getattr(declared, a, None)]:
        raise BrokenPluginError(
            f"{who} declares no {' and no '.join(missing)}; set it on {plugin.__name__}."
        )
    if normalize(declared.NAME) != name:
        raise BrokenPluginError(
            f"{who} calls itself {declared.NAME!r}; NAME and the entry point must agree."
        )
    if abstract := sorted(getattr(plugin, "__abstractmethods__", ())):
        raise BrokenPluginError(
            f"{who} leaves {', '.join(abstract)} unimplemented; define it on {plugin.__name__}."
        )
