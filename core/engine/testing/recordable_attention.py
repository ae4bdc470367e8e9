"""Paged attention that may be recorded, in operators that any device has. For tests; slow.

Every request's whole block table is attended to, whatever is live, so that shapes depend on the
padded batch alone and everything else is read from the device tensors.

Shapes: T tokens, R requests, S slots of a block table, K key/value heads, D head size.
"""

from __future__ import annotations

import torch

from engine.attention import AttentionInputs, AttentionPlugin, AttentionSpec
from engine.facts import GraphSupport
from engine.plugin import Numerics


class RecordableAttention(AttentionPlugin):
    """Static shapes, no look at the host, no write for a slot of -1."""

    NAME = "recordable"
    SUMMARY = "paged attention with static shapes, for tests of graph modes"
    NUMERICS = Numerics.TOLERANCE
    GRAPH_SUPPORT = GraphSupport.ALWAYS

    def cache_shape(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return (2, slots, K, D)."""
        return (2, num_blocks * block_size, spec.num_kv_heads, spec.head_size)

    def begin_step(self, inputs: AttentionInputs) -> AttentionInputs:
        """Keep the device tensors."""
        return inputs

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: AttentionInputs,
    ) -> None:
        """Store this step's keys and values, then attend causally; padded rows become zero."""
        live = metadata.slots >= 0
        _store(key, value, cache, metadata.slots, live)
        owner, position = _places(metadata, query.shape[0])
        slots = _context_slots(metadata, cache.shape[1])[owner]
        keys, values = cache[0][slots], cache[1][slots]
        group = spec.num_heads // spec.num_kv_heads
        keys = keys.repeat_interleave(group, dim=2)
        values = values.repeat_interleave(group, dim=2)
        at = torch.arange(slots.shape[1], device=query.device)
        seen = (at <= position.unsqueeze(1)) & live.unsqueeze(1)
        if spec.sliding_window is not None:
            seen &= at > position.unsqueeze(1) - spec.sliding_window
        scores = torch.einsum("thd,tshd->ths", query.float(), keys.float()) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        hidden = ~seen.unsqueeze(1)
        # A finite number, so that a row that sees nothing has no NaN; 0 · NaN is one, so unseen
        # values are cleared too.
        weights = scores.masked_fill(hidden, -1e30).softmax(-1).masked_fill(hidden, 0)
        values = values.float().masked_fill(~seen[:, :, None, None], 0)
        attended = torch.einsum("ths,tshd->thd", weights, values)
        out.copy_(attended.masked_fill(~live[:, None, None], 0))


def _store(
    key: torch.Tensor,
    value: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    live: torch.Tensor,
) -> None:
    """Write keys and values; rows without a slot write the reserved block's own values again."""
    where = slots.clamp(min=0)
    for part, new in ((cache[0], key), (cache[1], value)):
        part.index_copy_(0, where, torch.where(live[:, None, None], new, part[where]))


def _places(inputs: AttentionInputs, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the request [T] of each token and its position [T] there."""
    token = torch.arange(num_tokens, device=inputs.slots.device)
    ends = inputs.query_start[1:].contiguous()
    owner = torch.searchsorted(ends, token.to(ends.dtype), right=True)
    owner = owner.clamp(max=ends.shape[0] - 1)
    return owner, inputs.seq_lens[owner] - (ends[owner] - token)


def _context_slots(inputs: AttentionInputs, num_slots: int) -> torch.Tensor:
    """Return the cache slots [R, S] of each request; what a table doesn't say is slot 0."""
    size = inputs.block_size
    offset = torch.arange(size, device=inputs.slots.device)
    slots = (inputs.block_tables.long().unsqueeze(2) * size + offset).flatten(1)
    return slots.masked_fill((slots < 0) | (slots >= num_slots), 0)
