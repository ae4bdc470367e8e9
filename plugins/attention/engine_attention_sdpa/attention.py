"""The plugin: stores a step's keys and values, then attends request by request or fused.

Cache of one layer: [2, K, blocks, block_size, D], keys first. With the heads outside, the blocks
that follow each other in the pool are one strided view [K, tokens, D], which torch's attention
reads in place.
"""

from __future__ import annotations

import torch
from pydantic import BaseModel

from engine.attention import AttentionInputs, AttentionPlugin, AttentionSpec
from engine.facts import GraphSupport
from engine.plugin import Numerics
from engine_attention_sdpa.scratch import Scratch
from engine_attention_sdpa.step import Step


class SdpaAttention(AttentionPlugin):
    """Paged attention out of torch's own operators; reads only the context that is attended to.

    A request alone, a long context and every prefill chunk go through
    `scaled_dot_product_attention`, in place when the request's blocks follow each other. Many
    short decoding requests are computed together, block by block.
    """

    NAME = "sdpa"
    SUMMARY = "paged attention in pure torch: runs on any device, the reference"
    NUMERICS = Numerics.TOLERANCE
    GRAPH_SUPPORT = GraphSupport.NEVER

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        # Kept for the engine's life: fresh pages at every step cost more than what fills them.
        self._scratch = Scratch()

    def cache_shape(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return (2, K, num_blocks, block_size, D)."""
        return (2, spec.num_kv_heads, num_blocks, block_size, spec.head_size)

    def begin_step(self, inputs: AttentionInputs) -> Step:
        """Find out where the step's tokens go and which blocks each request reads."""
        return Step(inputs, self._scratch)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: Step,
    ) -> None:
        """Store this step's keys and values, then attend causally; padded rows become zero."""
        metadata.store(key, value, cache)
        plan = metadata.plan(spec, query.dtype)
        for request in plan.requests:
            request.attend(query, key, value, out, cache, spec)
        for group in plan.groups:
            group.attend(query, out, cache, spec)
        if metadata.num_tokens < out.shape[0]:
            out[metadata.num_tokens :].zero_()
