"""The contract of an attention implementation.

Shapes: T tokens of the step, R requests, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from engine.batch import BatchShape
from engine.facts import GraphSupport
from engine.plugin import Plugin

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


@dataclass(frozen=True)
class AttentionSpec:
    """What one attention layer of a model asks for.

    Attributes:
        num_heads: query heads H.
        num_kv_heads: key/value heads K; H is a multiple of K.
        head_size: D.
        scale: factor on q·k before the softmax.
        sliding_window: a token sees at most this many tokens, itself included; None for all.
        soft_cap: scores become `cap * tanh(score / cap)`; None for no cap.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True)
class AttentionInputs:
    """Where the tokens of a step lie, on the host and on the device.

    The device tensors are views of static buffers that never move, cut to the padded shape
    (R and T below); rows beyond the live ones are reset at each step. The host arrays hold the
    live rows only.

    Attributes:
        shape: the live shape.
        query_start: [R + 1] int32; request r owns tokens `query_start[r]:query_start[r + 1]`;
            padded requests are empty.
        seq_lens: [R] int32; tokens of the request including those of this step; 0 when padded.
        block_tables: [R, blocks] int32; block 0 is reserved and belongs to nobody.
        slots: [T] int64; where each token's key and value go, as `block * block_size + offset`;
            -1 when padded: such a row must write nothing.
        block_size: tokens in one block.
        host_query_start, host_seq_lens, host_block_tables: the live rows as numpy arrays.
    """

    shape: BatchShape
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slots: torch.Tensor
    block_size: int
    host_query_start: NDArray[np.int32]
    host_seq_lens: NDArray[np.int32]
    host_block_tables: NDArray[np.int32]


@dataclass(frozen=True)
class Rotation:
    """What an attention implementation that rotates does to queries and keys first.

    The meaning is that of `engine.ops.qk_norm_rope`.

    Attributes:
        cos, sin: [T, 1, R], R at most D.
        signed: the first half of `sin` is negated already.
        query_weight, key_weight: [D], of the norm over each head; None where there is none.
        eps: added to the mean square of a head.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    signed: bool
    query_weight: torch.Tensor | None
    key_weight: torch.Tensor | None
    eps: float


class AttentionPlugin(Plugin):
    """Writes keys and values into the paged cache and attends to it."""

    GRAPH_SUPPORT: ClassVar[GraphSupport] = GraphSupport.NEVER
    """For which batches it may be recorded. `ALWAYS` promises that launches depend on the padded
    shape only and that everything else is read from the device tensors at run time."""

    ROTATES: ClassVar[bool] = False
    """Whether `forward_rotating` is implemented. Nobody has to: where it isn't, queries and keys
    are rotated before `forward` is called."""

    @abstractmethod
    def cache_shape(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of one layer's KV cache; its dtype is the model's."""

    @abstractmethod
    def begin_step(self, inputs: AttentionInputs) -> Any:
        """Prepare what all layers of a step share; the result is handed to `forward`."""

    @abstractmethod
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: Any,
    ) -> None:
        """Store this step's keys and values, then attend causally.

        Args:
            query: [T, H, D].
            key: [T, K, D].
            value: [T, K, D].
            out: [T, H, D], to be written; rows of padded tokens may hold anything finite.
            cache: this layer's KV cache, of `cache_shape`.
            spec: what the layer asks for.
            metadata: what `begin_step` returned.
        """

    def forward_rotating(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotation: Rotation,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: Any,
    ) -> None:
        """Normalise and rotate queries and keys, then do as `forward` does.

        One kernel can rotate keys and store them. Called only where `ROTATES` is true.

        Args:
            query: [T, H, D], not rotated; any strides within which a head is packed.
            key: [T, K, D], likewise.
            value: [T, K, D].
            rotation: what is done to queries and keys.
            out: [T, H, D], as in `forward`.
            cache: this layer's KV cache, of `cache_shape`.
            spec: what the layer asks for.
            metadata: what `begin_step` returned.
        """
        raise NotImplementedError(f"{self.NAME} declares ROTATES, but has no forward_rotating")
