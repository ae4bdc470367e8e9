"""The plugin: what it declares, and the step's inputs as the kernels want them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from pydantic import BaseModel

from engine.attention import AttentionInputs, AttentionPlugin, AttentionSpec, Rotation
from engine.facts import Facts, GraphSupport
from engine.plugin import Numerics, Refusal, StartupCost


@dataclass(frozen=True)
class _Step:
    inputs: AttentionInputs
    decode: bool


class TritonAttention(AttentionPlugin):
    """Paged attention for prompts, decode and mixtures of both.

    All launches depend on the padded batch only and read the live batch from device memory, so
    every batch may be inside a recorded graph.
    """

    NAME = "triton"
    SUMMARY = "paged attention in Triton for GPUs: any batch in one launch, recordable"
    DEVICES = frozenset({"cuda"})
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.SECONDS
    GRAPH_SUPPORT = GraphSupport.ALWAYS
    ROTATES = True

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        # A platform without Triton can still say what this plugin is, and why it can't be used.
        from engine_attention_triton.launches import store_and_attend

        self._launch = store_and_attend

    @classmethod
    def refuse(cls, facts: Facts) -> Refusal | None:
        """Refuse other devices, and platforms without Triton."""
        if refusal := super().refuse(facts):
            return refusal
        if find_spec("triton") is None:
            return Refusal("Triton isn't installed", "install it: pip install triton")
        return None

    def cache_shape(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return (2, num_blocks, K, block_size, D)."""
        return (2, num_blocks, spec.num_kv_heads, block_size, spec.head_size)

    def begin_step(self, inputs: AttentionInputs) -> _Step:
        """Keep the device tensors; nothing is computed on the host."""
        padded = inputs.slots.shape[0] == inputs.seq_lens.shape[0]
        return _Step(inputs, inputs.shape.uniform_decode and padded)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: _Step,
    ) -> None:
        """Store this step's keys and values, then attend causally."""
        self._launch(query, key, value, out, cache, spec, metadata.inputs, decode=metadata.decode)

    def forward_rotating(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotation: Rotation,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: _Step,
    ) -> None:
        """Rotate in the kernel that stores keys and values, then attend causally."""
        self._launch(
            query,
            key,
            value,
            out,
            cache,
            spec,
            metadata.inputs,
            decode=metadata.decode,
            rotation=rotation,
        )
