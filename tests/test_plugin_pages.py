"""What the pages for plugin authors name exists."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from docs.reference import INTERFACES

from engine.hookspecs import HOOK_OF_KIND

DOCS = Path(__file__).parents[1] / "docs"
CLASSES: dict[str, Any] = {
    path.partition(":")[2]: resolve_name(path) for paths in INTERFACES.values() for path in paths
}


def lead(name: str) -> Any:
    """Return what a dotted name means: a class of the contract, its member, or an import path."""
    first, _, member = name.partition(".")
    if first in CLASSES:
        return getattr(CLASSES[first], member) if member else CLASSES[first]
    return resolve_name(name)


def test_what_the_table_of_forks_names_exists() -> None:
    rows = re.findall(r"^\| .* \| .* \| (.*) \|$", (DOCS / "without-a-fork.md").read_text(), re.M)
    rows = [row for row in rows if row not in ("here", "---")]
    assert len(rows) >= 15
    for row in rows:
        names = re.findall(r"`([\w.]+)`", row)
        kinds = re.findall(r"kind `(\w+)`", row)
        assert names, row
        assert set(kinds) <= HOOK_OF_KIND.keys(), row
        for name in set(names) - set(kinds) - {"torch.compile"}:
            field_of_dataclass = name.partition(".")
            cls = CLASSES.get(field_of_dataclass[0])
            if cls is not None and field_of_dataclass[2] in getattr(cls, "__annotations__", {}):
                continue
            lead(name)


@pytest.mark.parametrize("owner", ["CompileStrategy", "GraphStrategy", "AttentionPlugin"])
def test_the_life_cycle_names_every_method_of_a_strategy(owner: str) -> None:
    text = (DOCS / "life-cycle.md").read_text()
    drawn = set(re.findall(rf"{owner}\.(\w+)", text)) | set(re.findall(r", (\w+)", text))
    abstract = CLASSES[owner].__abstractmethods__
    assert abstract <= drawn
    for name in re.findall(r"\b([A-Z]\w+)\.(\w+)", text):
        assert hasattr(CLASSES[name[0]], name[1]), name
