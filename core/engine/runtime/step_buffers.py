"""The static inputs of a step: host arrays that are filled, device tensors that never move.

On the CPU both are the same memory. Elsewhere the host side is pinned and copied in one
asynchronous transfer per array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention import AttentionInputs
from engine.batch import BatchShape
from engine.runtime.scheduler import Row
from engine.strategies import ModelInputs


@dataclass(frozen=True)
class _Mirror:
    """A host array and the device tensor that follows it."""

    host: NDArray[np.int64] | NDArray[np.int32]
    pinned: torch.Tensor
    device: torch.Tensor

    @classmethod
    def make(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> _Mirror:
        pinned = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        moved = pinned if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)
        return cls(pinned.numpy(), pinned, moved)

    def poison(self) -> None:
        """Fill both sides with what no index survives unnoticed."""
        self.pinned.fill_(torch.iinfo(self.pinned.dtype).max)
        if self.device is not self.pinned:
            self.device.copy_(self.pinned)

    def send(self, rows: int) -> None:
        """Copy the first rows to the device."""
        if self.device is not self.pinned:
            self.device[:rows].copy_(self.pinned[:rows], non_blocking=True)


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
        self._ids = _Mirror.make((max_num_tokens,), torch.int64, device)
        self._positions = _Mirror.make((max_num_tokens,), torch.int64, device)
        self._slots = _Mirror.make((max_num_tokens,), torch.int64, device)
        self._query_start = _Mirror.make((max_num_seqs + 1,), torch.int32, device)
        self._seq_lens = _Mirror.make((max_num_seqs,), torch.int32, device)
        self._tables = _Mirror.make((max_num_seqs, max_blocks), torch.int32, device)

    def fill(
        self, rows: tuple[Row, ...], shape: BatchShape, padded: BatchShape
    ) -> tuple[ModelInputs, AttentionInputs]:
        """Write a step's inputs and return views of the padded shape."""
        if self._debug:
            self._poison()
        starts, lens, tables = self._query_start.host, self._seq_lens.host, self._tables.host
        ids, positions, slots = self._ids.host, self._positions.host, self._slots.host
        start = 0
        for index, row in enumerate(rows):
            sequence, count = row.sequence, row.num_tokens
            first, end = sequence.num_computed_tokens, start + count
            ids[start:end] = sequence.token_ids[first : first + count]
            positions[start:end] = np.arange(first, first + count)
            starts[index] = start
            lens[index] = first + count
            blocks = sequence.block_ids
            tables[index, : len(blocks)] = blocks
            start = end
        live, total = len(rows), start
        starts[live:] = total
        owner = np.repeat(np.arange(live), np.diff(starts[: live + 1]))
        where = positions[:total]
        slots[:total] = (
            tables[owner, where // self.block_size].astype(np.int64) * self.block_size
            + where % self.block_size
        )
        self._reset_padding(live, total, padded)
        return self._views(shape, padded)

    def fill_dummy(self, shape: BatchShape) -> tuple[ModelInputs, AttentionInputs]:
        """Write inputs of a batch that touches no KV block: every slot is -1."""
        if self._debug:
            self._poison()
        counts = [shape.num_tokens // shape.num_reqs] * shape.num_reqs
        counts[-1] += shape.num_tokens - sum(counts)
        starts = self._query_start.host
        starts[0] = 0
        starts[1 : shape.num_reqs + 1] = np.cumsum(counts)
        starts[shape.num_reqs :] = shape.num_tokens
        self._seq_lens.host[: shape.num_reqs] = counts
        self._tables.host[: shape.num_reqs] = 0
        self._ids.host[: shape.num_tokens] = 0
        positions = np.concatenate([np.arange(count) for count in counts])
        self._positions.host[: shape.num_tokens] = positions
        self._slots.host[: shape.num_tokens] = -1
        return self._views(shape, shape)

    def _poison(self) -> None:
        inputs = self._ids, self._positions, self._slots
        for mirror in (*inputs, self._query_start, self._seq_lens, self._tables):
            mirror.poison()

    def _reset_padding(self, live: int, total: int, padded: BatchShape) -> None:
        tokens, reqs = padded.num_tokens, padded.num_reqs
        self._ids.host[total:tokens] = 0
        self._positions.host[total:tokens] = 0
        self._slots.host[total:tokens] = -1
        self._seq_lens.host[live:reqs] = 0
        self._tables.host[live:reqs] = 0

    def _views(self, shape: BatchShape, padded: BatchShape) -> tuple[ModelInputs, AttentionInputs]:
        tokens, reqs, live = padded.num_tokens, padded.num_reqs, shape.num_reqs
        for mirror in (self._ids, self._positions, self._slots):
            mirror.send(tokens)
        for mirror in (self._query_start, self._seq_lens, self._tables):
            mirror.send(reqs + (mirror is self._query_start))
        inputs = ModelInputs(self._ids.device[:tokens], self._positions.device[:tokens])
        attention = AttentionInputs(
            shape=shape,
            query_start=self._query_start.device[: reqs + 1],
            seq_lens=self._seq_lens.device[:reqs],
            block_tables=self._tables.device[:reqs],
            slots=self._slots.device[:tokens],
            block_size=self.block_size,
            host_query_start=self._query_start.host[: live + 1],  # type: ignore[arg-type]  # int32
            host_seq_lens=self._seq_lens.host[:live],  # type: ignore[arg-type]  # by construction
            host_block_tables=self._tables.host[:live],  # type: ignore[arg-type]  # likewise
        )
        return inputs, attention
