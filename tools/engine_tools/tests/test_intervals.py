"""Arithmetic on stretches of time, against counting microsecond by microsecond."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine_tools.profile.intervals import Interval, common, total, union, without

pieces = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: Interval(p[0], p[0] + p[1])),
    max_size=8,
)


def covered(intervals: Iterable[Interval]) -> set[int]:
    return {at for start, end in intervals for at in range(int(start), int(end))}


def are_apart(intervals: list[Interval]) -> bool:
    return all(a.end < b.start for a, b in pairwise(intervals))


@given(pieces, pieces)
def test_each_operation_covers_what_it_says(first: list[Interval], second: list[Interval]) -> None:
    assert covered(union(first)) == covered(first)
    assert are_apart(union(first))
    assert total(first) == len(covered(first))
    assert covered(common(first, second)) == covered(first) & covered(second)
    assert covered(without(first, second)) == covered(first) - covered(second)
    assert total(common(first, second)) + total(without(first, second)) == total(first)
