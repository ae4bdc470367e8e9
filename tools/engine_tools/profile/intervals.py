"""Arithmetic on stretches of time, in microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """From `start` to `end`."""

    start: float
    end: float


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return what is covered by any of them, as stretches that don't touch, in order."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i.end > i.start):
        if merged and start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(end, merged[-1].end))
        else:
            merged.append(Interval(start, end))
    return merged


def total(intervals: Iterable[Interval]) -> float:
    """Return how much time is covered by any of them."""
    return sum(end - start for start, end in union(intervals))


def common(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return what is covered by both."""
    left, right, found = union(first), union(second), list[Interval]()
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i].start, right[j].start), min(left[i].end, right[j].end)
        if start < end:
            found.append(Interval(start, end))
        if left[i].end < right[j].end:
            i += 1
        else:
            j += 1
    return found


def without(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return what is covered by the first and not by the second."""
    found: list[Interval] = []
    taken = union(second)
    j = 0
    for start, end in union(first):
        while j < len(taken) and taken[j].end <= start:
            j += 1
        k, at = j, start
        while k < len(taken) and taken[k].start < end:
            if taken[k].start > at:
                found.append(Interval(at, taken[k].start))
            at = max(at, taken[k].end)
            k += 1
        if at < end:
            found.append(Interval(at, end))
    return found
