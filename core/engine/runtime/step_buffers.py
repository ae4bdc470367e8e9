"""The static inputs of a step: host arrays that are filled, device tensors that never move.

On the CPU both are the same memory. Elsewhere the host side is pinned and copied in one
asynchronous transfer per array, from two sets in turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention import AttentionInputs
from engine.batch import BatchShape
from engine.runtime.scheduler import Row
from engine.strategies import ModelInputs

_REMEMBERED = 1024
"""Rows up to which views are kept: decode comes back to few sizes, and a view costs the host as
much as a copy."""


class _Mirror:
    """Host arrays and the device tensor that follows one of them.

    There are two, used in turn: the device may still be copying from the one of the step before
    while the next step is written.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        if self._is_shared(device):
            self.device = torch.zeros(shape, dtype=dtype)
            self._pinned = [self.device]
        else:
            self.device = torch.zeros(shape, dtype=dtype, device=device)
            pin = device.type == "cuda"
            self._pinned = [torch.zeros(shape, dtype=dtype, pin_memory=pin) for _ in range(2)]
        self._arrays = [pinned.numpy() for pinned in self._pinned]
        self._known: dict[int, torch.Tensor] = {}
        self._parts: dict[tuple[int, int], torch.Tensor] = {}
        self.turn = 0

    @staticmethod
    def _is_shared(device: torch.device) -> bool:
        return device.type == "cpu"

    @property
    def host(self) -> NDArray[Any]:
        """What is written in this turn."""
        return self._arrays[self.turn]

    def part(self, rows: int) -> torch.Tensor:
        """Return the first rows on the device."""
        if (known := self._known.get(rows)) is None:
            known = self.device[:rows]
            if rows <= _REMEMBERED:
                self._known[rows] = known
        return known

    def flip(self) -> None:
        """Begin the next turn."""
        self.turn = (self.turn + 1) % len(self._pinned)

    def poison(self) -> None:
        """Fill both sides with what no index survives unnoticed."""
        pinned = self._pinned[self.turn]
        pinned.fill_(torch.iinfo(pinned.dtype).max)
        if self.device is not pinned:
            self.device.copy_(pinned)

    def send(self, rows: int) -> None:
        """Copy the first rows to the device."""
        if self.device is self._pinned[0]:
            return
        key = self.turn, rows
        if (source := self._parts.get(key)) is None:
            source = self._pinned[self.turn][:rows]
            if rows <= _REMEMBERED:
                self._parts[key] = source
        self.part(rows).copy_(source, non_blocking=True)


_Written = list[tuple[list[int] | None, int]]
"""Of each row of the block tables, whose blocks it holds, and how many of them."""


class _Tables:
    """The block tables of one turn: only what is new of a sequence is written again."""

    def __init__(self) -> None:
        self._written: _Written = []

    def write(self, table: NDArray[np.int32], index: int, blocks: list[int]) -> None:
        """Write a sequence's blocks into a row."""
        while len(self._written) <= index:
            self._written.append((None, 0))
        owner, start = self._written[index]
        count = len(blocks)
        # The very list: a sequence that starts again gets a new one.
        if owner is not blocks:
            start = 0
        if start < count:
            table[index, start:count] = blocks[start:]
            self._written[index] = blocks, count

    def forget(self, first: int) -> None:
        """Forget the rows from here on, which were overwritten."""
        del self._written[first:]

    def rows(self, count: int) -> _Written:
        """Return what stands in the first rows."""
        return self._written[:count]


class StepBuffers:
    """Holds and fills the inputs of a step.

    Args:
        max_num_tokens: rows for tokens (T).
        max_num_seqs: rows for requests (R).
        max_blocks: columns of the block tables.
        block_size: tokens in a KV block.
        device: where the model runs.
        debug: poison everything before each step, so that what a step forgets to write shows.
    """

    def __init__(
        self,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_blocks: int,
        block_size: int,
        device: torch.device,
        debug: bool = False,
    ) -> None:
        self.block_size = block_size
        self._debug = debug
        self.max_num_tokens = max_num_tokens
        self.max_num_seqs = max_num_seqs
        self._ids = _Mirror((max_num_tokens,), torch.int64, device)
        self._positions = _Mirror((max_num_tokens,), torch.int64, device)
        self._slots = _Mirror((max_num_tokens,), torch.int64, device)
        self._query_start = _Mirror((max_num_seqs + 1,), torch.int32, device)
        self._seq_lens = _Mirror((max_num_seqs,), torch.int32, device)
        self._tables = _Mirror((max_num_seqs, max_blocks), torch.int32, device)
        self._known_tables = _Tables(), _Tables()
        # What the device has of the arrays that seldom change; None when that isn't known.
        self._sent_tables: tuple[int, _Written] | None = None
        self._sent_starts: tuple[int, int] | None = None

    def fill(
        self, rows: tuple[Row, ...], shape: BatchShape, padded: BatchShape
    ) -> tuple[ModelInputs, AttentionInputs]:
        """Write a step's inputs and return views of the padded shape."""
        self._begin()
        starts, lens, tables = self._query_start.host, self._seq_lens.host, self._tables.host
        ids, positions, slots = self._ids.host, self._positions.host, self._slots.host
        known, start = self._known_tables[self._tables.turn], 0
        for index, row in enumerate(rows):
            sequence, count = row.sequence, row.num_tokens
            first, end = sequence.num_computed_tokens, start + count
            ids[start:end] = sequence.token_ids[first : first + count]
            positions[start:end] = np.arange(first, first + count)
            starts[index] = start
            lens[index] = first + count
            known.write(tables, index, sequence.block_ids)
            start = end
        live, total = len(rows), start
        starts[live:] = total
        owner = np.repeat(np.arange(live), np.diff(starts[: live + 1]))
        self._find_slots(slots, owner, positions[:total])
        self._reset_padding(live, total, padded)
        self._send(live, total, padded)
        return self._views(shape, padded)

    def fill_ahead(
        self, rows: tuple[Row, ...], shape: BatchShape, padded: BatchShape, tokens: torch.Tensor
    ) -> tuple[ModelInputs, AttentionInputs]:
        """Write the inputs of a decode step whose tokens are known on the device only.

        Args:
            rows: each decodes the token after those that its sequence knows.
            shape: of the rows.
            padded: what is run.
            tokens: [R] int64 on the device, one for each row.
        """
        self._begin()
        live = len(rows)
        tables = self._tables.host
        known = self._known_tables[self._tables.turn]
        for index, row in enumerate(rows):
            known.write(tables, index, row.sequence.block_ids)
        positions = self._positions.host[:live]
        positions[:] = [len(row.sequence.token_ids) for row in rows]
        self._seq_lens.host[:live] = positions + 1
        starts = self._query_start.host
        starts[:live] = np.arange(live)
        starts[live:] = live
        self._find_slots(self._slots.host, np.arange(live), positions)
        self._ids.host[:live] = 0
        self._reset_padding(live, live, padded)
        self._send(live, live, padded, ids=live < padded.num_tokens)
        self._ids.part(live).copy_(tokens)
        return self._views(shape, padded)

    def _begin(self) -> None:
        """Take the host arrays of the next turn."""
        for mirror in self._all():
            mirror.flip()
            if self._debug:
                mirror.poison()
        if self._debug:
            self._known_tables[self._tables.turn].forget(0)
            self._sent_tables = self._sent_starts = None

    def _find_slots(
        self, slots: NDArray[Any], owner: NDArray[np.int64], positions: NDArray[Any]
    ) -> None:
        """Write the slot of each token: its block's, and its place in it."""
        block, offset = np.divmod(positions, self.block_size)
        blocks = self._tables.host[owner, block].astype(np.int64)
        slots[: len(positions)] = blocks * self.block_size + offset

    def fill_dummy(self, shape: BatchShape) -> tuple[ModelInputs, AttentionInputs]:
        """Write inputs of a batch that touches no KV block: every slot is -1.

        A shape may have more tokens than its requests' contexts hold. What is too much is padding:
        a longer request would have its blocks looked up beyond its block table.
        """
        self._begin()
        self._known_tables[self._tables.turn].forget(0)
        reqs, tokens = shape.num_reqs, shape.num_tokens
        counts = np.full(reqs, tokens // reqs)
        counts[-1] += tokens - counts.sum()
        # The shortest context that needs so many blocks.
        counts = counts.clip(max=(self._tables.host.shape[1] - 1) * self.block_size + 1)
        total = int(counts.sum())
        starts = self._query_start.host
        starts[0] = 0
        starts[1 : reqs + 1] = np.cumsum(counts)
        starts[reqs:] = total
        self._seq_lens.host[:reqs] = counts
        self._tables.host[:reqs] = 0
        self._ids.host[:tokens] = 0
        self._positions.host[:total] = np.concatenate([np.arange(count) for count in counts])
        self._positions.host[total:tokens] = 0
        self._slots.host[:tokens] = -1
        self._sent_tables = self._sent_starts = None
        self._send(0, tokens, shape)
        live = replace(shape, num_tokens=total, max_query_len=int(counts.max()))
        return self._views(live, shape)

    def _all(self) -> tuple[_Mirror, ...]:
        inputs = self._ids, self._positions, self._slots
        return (*inputs, self._query_start, self._seq_lens, self._tables)

    def _reset_padding(self, live: int, total: int, padded: BatchShape) -> None:
        tokens, reqs = padded.num_tokens, padded.num_reqs
        self._ids.host[total:tokens] = 0
        self._positions.host[total:tokens] = 0
        self._slots.host[total:tokens] = -1
        self._seq_lens.host[live:reqs] = 0
        if live < reqs:
            self._tables.host[live:reqs] = 0
            self._known_tables[self._tables.turn].forget(live)

    def _send(self, live: int, total: int, padded: BatchShape, *, ids: bool = True) -> None:
        """Copy to the device what it hasn't got; small copies take as long as small kernels."""
        if ids:
            self._ids.send(padded.num_tokens)
        self._positions.send(padded.num_tokens)
        self._slots.send(padded.num_tokens)
        self._seq_lens.send(padded.num_reqs)
        # With one token each, the starts depend on the number of requests alone.
        starts = (live, padded.num_reqs) if live == total else None
        if starts is None or starts != self._sent_starts:
            self._query_start.send(padded.num_reqs + 1)
            self._sent_starts = starts
        tables = padded.num_reqs, self._known_tables[self._tables.turn].rows(live)
        if self._sent_tables is None or not _are_same(tables, self._sent_tables):
            self._tables.send(padded.num_reqs)
            self._sent_tables = tables

    def _views(self, shape: BatchShape, padded: BatchShape) -> tuple[ModelInputs, AttentionInputs]:
        tokens, reqs, live = padded.num_tokens, padded.num_reqs, shape.num_reqs
        inputs = ModelInputs(self._ids.part(tokens), self._positions.part(tokens))
        attention = AttentionInputs(
            shape=shape,
            query_start=self._query_start.part(reqs + 1),
            seq_lens=self._seq_lens.part(reqs),
            block_tables=self._tables.part(reqs),
            slots=self._slots.part(tokens),
            block_size=self.block_size,
            host_query_start=self._query_start.host[: live + 1],
            host_seq_lens=self._seq_lens.host[:live],
            host_block_tables=self._tables.host[:live],
        )
        return inputs, attention


def _are_same(one: tuple[int, _Written], other: tuple[int, _Written]) -> bool:
    """Say whether both are so many rows of the very same lists, as far as they were written."""
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return False
    pairs = zip(one[1], other[1], strict=True)
    return all(mine[0] is its[0] and mine[1] == its[1] for mine, its in pairs)
