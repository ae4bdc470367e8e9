"""In what two artifacts differ, told in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Difference(NamedTuple):
    """One factor in which two artifacts differ; an absent one is empty."""

    factor: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.factor} ({' and '.join(_shortened(self.first, self.second))})"


def compare(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """Return the factors in which two artifacts differ, by name."""
    names = sorted({*first, *second})
    pairs = (Difference(name, first.get(name, ""), second.get(name, "")) for name in names)
    return [pair for pair in pairs if pair.first != pair.second]


def nearest(stored: Iterable[tuple[str, Mapping[str, str]]], factors: Mapping[str, str]) -> str:
    """Return half a sentence: which stored artifact is most like the one of these factors.

    Args:
        stored: what `ArtifactStore.stored` yields.
        factors: of the artifact that isn't there.
    """
    found = [(compare(kept, factors), key) for key, kept in stored]
    if not found:
        return ", which holds none"
    # Another version of the same graph says more than another graph of the same version.
    differences, key = min(found, key=lambda one: (_is_other_graph(one[0]), len(one[0]), one[1]))
    if not differences:
        return ""
    told = ", ".join(map(str, differences))
    return f"; the nearest one, {key[:12]}, differs (there and here) in {told}"


def _is_other_graph(differences: list[Difference]) -> int:
    return sum(one.factor in ("graph", "whole graph", "tokens") for one in differences)


_SHOWN = 40


def _shortened(first: str, second: str) -> tuple[str, str]:
    """Show two values around the place where they begin to differ."""
    pairs = zip(first, second, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    start = max(0, same - _SHOWN // 4) if max(len(first), len(second)) > _SHOWN else 0
    return _window(first, start), _window(second, start)


def _window(value: str, start: int) -> str:
    end = start + _SHOWN
    shown = f"{'…' if start else ''}{value[start:end]}{'…' if end < len(value) else ''}"
    return shown or "nothing"
