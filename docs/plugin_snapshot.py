"""Keeps a record of what plugins rely on, so that no signature changes unnoticed.

    python -m docs.plugin_snapshot            # write the record, if every change is noted
    python -m docs.plugin_snapshot --check    # say what differs

What is new is written at once. What changed or went must be named in docs/plugin-versions.md, under
the current version of the contract, because some plugin may have to follow.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from docs.reference import INTERFACES

from engine.hookspecs import API_VERSION, HOOK_OF_KIND, EngineSpec

RECORD = Path(__file__).with_name("plugin_snapshot.json")
PAGE = Path(__file__).with_name("plugin-versions.md")


def surface() -> dict[str, str]:
    """Return every hook, and every public member of every interface, with its signature."""
    found = {
        f"hook {hook} ({kind})": str(inspect.signature(getattr(EngineSpec, hook)))
        for kind, hook in HOOK_OF_KIND.items()
    }
    for paths in INTERFACES.values():
        for path in paths:
            cls = resolve_name(path)
            name = path.replace(":", ".")
            found[name] = ", ".join(base.__name__ for base in cls.__bases__)
            found |= {f"{name}.{member}": text for member, text in _members(cls)}
    return found


def _members(cls: type) -> list[tuple[str, str]]:
    members = []
    own = inspect.get_annotations(cls)
    fields = (
        {field.name: field for field in dataclasses.fields(cls)}
        if dataclasses.is_dataclass(cls)
        else {}
    )
    for name in sorted({*own, *vars(cls)}):
        if name.startswith("_"):
            continue
        value = vars(cls).get(name)
        function: Any = getattr(value, "__func__", getattr(value, "fget", value))
        if callable(function) and not isinstance(function, type):
            abstract = "abstract " * bool(getattr(value, "__isabstractmethod__", False))
            members.append((name, f"{abstract}{inspect.signature(function)}"))
        elif name in own:
            required = name in fields and _is_required(fields[name])
            members.append((name, f"{'required ' * required}{own[name]}"))
    return members


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def recorded() -> dict[str, Any]:
    """Return the record."""
    kept: dict[str, Any] = json.loads(RECORD.read_text())
    return kept


def differences(old: dict[str, str], new: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return what is new and what plugins must follow, by name.

    A new member that an implementation must have, or that a constructor must be given where the
    class itself isn't new, is something to follow.
    """
    added: list[str] = []
    followed: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            continue
        owner = name.rpartition(".")[0]
        asked = new.get(name, "").startswith(("abstract ", "required ")) and owner in old
        (added if name not in old and not asked else followed).append(name)
    return added, followed


def notes() -> str:
    """Return what the page says of the current version."""
    page = PAGE.read_text() if PAGE.exists() else ""
    return page.partition(f"\n### Version {API_VERSION}\n")[2].partition("\n### ")[0]


def unnoted(names: Sequence[str]) -> list[str]:
    """Return the names that the current version's notes don't mention."""
    said = notes()
    return [name for name in names if f"`{name.removeprefix('hook ').split(' (')[0]}`" not in said]


def main(arguments: Sequence[str]) -> int:
    """Write, or check."""
    new = surface()
    kept: dict[str, Any] = (
        recorded() if RECORD.exists() else {"version": API_VERSION, "surface": new}
    )
    added, followed = differences(kept["surface"], new)
    missing = unnoted(followed)
    for name in added:
        print(f"new: {name}")
    for name in followed:
        noted = "not noted" if name in missing else "noted"
        print(f"changed ({noted}): {name}: {kept['surface'].get(name)} -> {new.get(name)}")
    if "--check" in arguments:
        return 1 if added or followed else 0
    if missing:
        page = PAGE.relative_to(PAGE.parents[1])
        print(f"Name what changed in {page}, under version {API_VERSION}, and say what to do.")
        return 1
    record = {"version": API_VERSION, "surface": new}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
