"""Unused block ids as maximal runs of consecutive ids, so that neighbours can be found."""

from __future__ import annotations

from itertools import islice

_LOOKS = 8
"""Runs of one size class that are compared; bounds the cost of a search."""


class FreeRuns:
    """A set of block ids that knows which of them follow each other.

    Every operation costs the same however many ids there are: runs are found by either end, and
    by size class (powers of two).

    Args:
        first: the lowest id.
        count: how many ids from there on are in the set.
    """

    def __init__(self, first: int, count: int) -> None:
        self._length_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self._classes: list[dict[int, None]] = [{} for _ in range(count.bit_length() + 1)]
        self._occupied = 0
        """Bit c is set when there are runs of size class c."""
        self._total = count
        if count:
            self._insert(first, count)

    def __len__(self) -> int:
        return self._total

    def length_at(self, start: int) -> int:
        """Return the length of the run that begins with this id; 0 when none does."""
        return self._length_at.get(start, 0)

    def longest(self) -> tuple[int, int]:
        """Return start and length of a longest run, as far as a bounded look can tell.

        Raises:
            IndexError: the set is empty.
        """
        if not self._occupied:
            raise IndexError("no run: the set is empty")
        top = self._classes[self._occupied.bit_length() - 1]
        start = max(islice(top, _LOOKS), key=self._length_at.__getitem__)
        return start, self._length_at[start]

    def add(self, block: int) -> None:
        """Put an id in; it joins the runs beside it."""
        start, length = block, 1
        if (left := self._start_of_end.get(block - 1)) is not None:
            length += self._remove(left)
            start = left
        if block + 1 in self._length_at:
            length += self._remove(block + 1)
        self._insert(start, length)
        self._total += 1

    def take(self, start: int, offset: int, count: int) -> range:
        """Take ids out of one run.

        Args:
            start: where the run begins.
            offset: ids of the run to leave before those taken.
            count: ids to take, at least 1.

        Returns:
            The ids taken, `start + offset` onwards.
        """
        length = self._remove(start)
        if offset:
            self._insert(start, offset)
        if rest := length - offset - count:
            self._insert(start + offset + count, rest)
        self._total -= count
        return range(start + offset, start + offset + count)

    def _insert(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_of_end[start + length - 1] = start
        size = length.bit_length()
        self._classes[size][start] = None
        self._occupied |= 1 << size

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_of_end[start + length - 1]
        size = length.bit_length()
        members = self._classes[size]
        del members[start]
        if not members:
            self._occupied &= ~(1 << size)
        return length
