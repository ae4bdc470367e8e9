"""What all layers of one step share, worked out once on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine_attention_sdpa.group import Group
from engine_attention_sdpa.request import Request

if TYPE_CHECKING:
    from engine.attention import AttentionInputs, AttentionSpec
    from engine_attention_sdpa.scratch import Scratch

MIN_FUSED = 8
"""Fewer decoding requests than this cost less one by one."""
MAX_FUSED_LENGTH = 1024
"""Decoding requests with a longer context are worth a call of their own."""
MAX_GROUP_TOKENS = 16384
"""Context computed together at a time; bounds the scratch memory."""


@dataclass(frozen=True)
class Plan:
    """How the rows of a step are computed, for layers that see the context in the same way."""

    requests: tuple[Request, ...]
    groups: tuple[Group, ...]


class Step:
    """One step's tokens, slots and blocks.

    Attributes:
        num_tokens: live tokens; the rows beyond are padding.
    """

    def __init__(self, inputs: AttentionInputs, scratch: Scratch) -> None:
        self._scratch = scratch
        self._device = inputs.slots.device
        self._block_size = inputs.block_size
        self._tables = inputs.host_block_tables
        self._starts: list[int] = inputs.host_query_start.tolist()
        self._lengths: list[int] = inputs.host_seq_lens.tolist()
        self._plans: dict[tuple[int | None, bool, torch.dtype], Plan] = {}
        self.num_tokens = self._starts[-1]
        # Rows without a slot (padding, dummy batches) must write nothing, not even to block 0.
        written = inputs.slots >= 0
        self._rows = None if bool(written.all()) else written.nonzero().flatten()
        self._slots = inputs.slots if self._rows is None else inputs.slots[self._rows]
        self._fresh = self._begun_blocks()

    def _begun_blocks(self) -> torch.Tensor | None:
        """Return the blocks that this step begins and doesn't fill."""
        begun = []
        for row, length in enumerate(self._lengths):
            block = length // self._block_size
            first = length - (self._starts[row + 1] - self._starts[row])
            if length % self._block_size and first <= block * self._block_size:
                begun.append(int(self._tables[row, block]))
        blocks = [block for block in begun if block > 0]
        return torch.tensor(blocks, device=self._device) if blocks else None

    def store(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor) -> None:
        """Write the step's keys and values [T, K, D] into a layer's cache."""
        _, heads, blocks, size, depth = cache.shape
        if self._fresh is not None:
            # A block is computed as a whole, its end masked. What an earlier owner left there
            # could be infinite or NaN, which no mask stops: 0 · NaN is NaN.
            cache.view(2, heads, blocks, size * depth).index_fill_(2, self._fresh, 0)
        if self._rows is not None:
            key, value = key[self._rows], value[self._rows]
        keys, values = cache.view(2, heads, blocks * size, depth).unbind(0)
        keys.index_copy_(1, self._slots, key.transpose(0, 1))
        values.index_copy_(1, self._slots, value.transpose(0, 1))

    def plan(self, spec: AttentionSpec, dtype: torch.dtype) -> Plan:
        """Return how to compute a layer; worked out once for all layers that are alike."""
        alike = (spec.sliding_window, spec.soft_cap is not None, dtype)
        plan = self._plans.get(alike)
        if plan is None:
            plan = self._plans[alike] = self._make_plan(*alike)
        return plan

    def _make_plan(self, window: int | None, capped: bool, dtype: torch.dtype) -> Plan:
        rows = range(len(self._lengths))
        short = [row for row in rows if self._is_short_decode(row, window)]
        fused = short if len(short) >= MIN_FUSED else []
        alone = sorted(set(rows) - set(fused))
        requests = [self._request(row, window, capped, dtype) for row in alone]
        groups = [self._group(part, window) for part in self._parts(fused, window)]
        return Plan(tuple(requests), tuple(groups))

    def _visible(self, row: int, window: int | None) -> int:
        """Return the tokens of context that the row's last token sees."""
        length = self._lengths[row]
        return length if window is None else min(length, window)

    def _is_short_decode(self, row: int, window: int | None) -> bool:
        one_token = self._starts[row + 1] - self._starts[row] == 1
        return one_token and 0 < self._visible(row, window) <= MAX_FUSED_LENGTH

    def _parts(self, rows: list[int], window: int | None) -> list[list[int]]:
        parts: list[list[int]] = []
        room = 0
        for row in rows:
            tokens = self._visible(row, window)
            if tokens > room:
                parts.append([])
                room = MAX_GROUP_TOKENS
            parts[-1].append(row)
            room -= tokens
        return parts

    def _request(self, row: int, window: int | None, capped: bool, dtype: torch.dtype) -> Request:
        return Request(
            start=self._starts[row],
            stop=self._starts[row + 1],
            length=self._lengths[row],
            table=self._tables[row],
            block_size=self._block_size,
            window=window,
            capped=capped,
            dtype=dtype,
            device=self._device,
        )

    def _group(self, rows: list[int], window: int | None) -> Group:
        return Group(
            tokens=np.array([self._starts[row] for row in rows]),
            lengths=np.array([self._lengths[row] for row in rows]),
            tables=[self._tables[row] for row in rows],
            block_size=self._block_size,
            window=window,
            device=self._device,
            scratch=self._scratch,
        )
