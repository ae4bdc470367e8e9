"""The decoder.

Shapes: T tokens of a step, H hidden size, A query heads, K key/value heads, D head size, I
intermediate size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

from engine.attention import AttentionSpec
from engine.models import CausalLM, fill
from engine.ops import (
    apply_rotary,
    attention,
    packed_linear,
    rotary_at,
    rotary_table,
    silu_and_mul,
)
from engine_model_llama.architecture import Architecture
from engine_model_llama.layers import Linear, RMSNorm, parameter


def _gated(activation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate) * up

    return apply


_GATED: dict[str, Callable[..., torch.Tensor]] = {
    "silu": silu_and_mul,
    "swish": silu_and_mul,
    "gelu": _gated(F.gelu),
    "gelu_pytorch_tanh": _gated(lambda x: F.gelu(x, approximate="tanh")),
    "relu": _gated(F.relu),
}


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(
        self, arch: Architecture, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self._layer, self._size = layer, arch.head_size
        self._heads = (arch.num_heads, arch.num_kv_heads)
        self._queries = arch.num_heads * arch.head_size
        keys = arch.num_kv_heads * arch.head_size
        self.qkv = Linear(
            arch.hidden_size,
            {"q_proj": self._queries, "k_proj": keys, "v_proj": keys},
            bias=arch.qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.output = Linear(
            self._queries,
            {"o_proj": arch.hidden_size},
            bias=arch.output_bias,
            dtype=dtype,
            device=device,
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if arch.qk_norm:
            self.q_norm = RMSNorm(arch.head_size, arch.norm_eps, dtype=dtype, device=device)
            self.k_norm = RMSNorm(arch.head_size, arch.norm_eps, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return [T, H] from x [T, H]; cos and sin are [T, 1, D]."""
        heads, kv_heads = self._heads
        # [T, A + 2K, D]; queries and keys lie side by side and are rotated as one.
        qkv = self.qkv(x).view(-1, heads + 2 * kv_heads, self._size)
        rotated = qkv[:, : heads + kv_heads]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = rotated[:, :heads], rotated[:, heads:]
            rotated = torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)
        rotated = apply_rotary(rotated, cos, sin)
        query, key, value = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        mixed = attention(query, key, value, self._layer)
        projected: torch.Tensor = self.output(mixed.view(-1, self._queries))
        return projected

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each checkpoint tensor's name and what it fills."""
        yield from self.qkv.checkpoint_tensors(prefix)
        yield from self.output.checkpoint_tensors(prefix)
        if self.q_norm is not None and self.k_norm is not None:
            yield f"{prefix}q_norm.weight", self.q_norm.weight
            yield f"{prefix}k_norm.weight", self.k_norm.weight


class Layer(nn.Module):
    """Attention and gated MLP, each normalised before and added to the residual stream."""

    def __init__(
        self, arch: Architecture, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self._activation = _GATED[arch.activation]
        inner = arch.intermediate_size
        self.input_norm = RMSNorm(arch.hidden_size, arch.norm_eps, dtype=dtype, device=device)
        self.attention = Attention(arch, layer, dtype=dtype, device=device)
        self.mlp_norm = RMSNorm(arch.hidden_size, arch.norm_eps, dtype=dtype, device=device)
        self.gate_up = Linear(
            arch.hidden_size,
            {"gate_proj": inner, "up_proj": inner},
            bias=arch.mlp_bias,
            dtype=dtype,
            device=device,
        )
        self.down = Linear(
            inner, {"down_proj": arch.hidden_size}, bias=arch.mlp_bias, dtype=dtype, device=device
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return [T, H] from x [T, H]; cos and sin are [T, 1, D]."""
        x = x + self.attention(self.input_norm(x), cos, sin)
        inner = self._activation(self.gate_up(self.mlp_norm(x)))
        added: torch.Tensor = self.down(inner)
        return x + added

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each checkpoint tensor's name and what it fills."""
        yield f"{prefix}input_layernorm.weight", self.input_norm.weight
        yield from self.attention.checkpoint_tensors(f"{prefix}self_attn.")
        yield f"{prefix}post_attention_layernorm.weight", self.mlp_norm.weight
        yield from self.gate_up.checkpoint_tensors(f"{prefix}mlp.")
        yield from self.down.checkpoint_tensors(f"{prefix}mlp.")


class Llama(CausalLM):
    """A decoder of the Llama family, over flat tokens."""

    def __init__(self, arch: Architecture, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.attention_specs = tuple(
            AttentionSpec(
                num_heads=arch.num_heads,
                num_kv_heads=arch.num_kv_heads,
                head_size=arch.head_size,
                scale=arch.head_size**-0.5,
                sliding_window=window,
            )
            for window in arch.windows
        )
        size = (arch.vocab_size, arch.hidden_size)
        self.embedding = parameter(*size, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            Layer(arch, layer, dtype=dtype, device=device) for layer in range(len(arch.windows))
        )
        self.norm = RMSNorm(arch.hidden_size, arch.norm_eps, dtype=dtype, device=device)
        self.head = self.embedding if arch.tied else parameter(*size, dtype=dtype, device=device)
        # Rounded to the model's dtype after the sines are taken in float32; one look-up a step.
        table = rotary_table(arch.inv_freq, arch.max_positions, arch.rotary_scale)
        self.register_buffer("rotary", table.to(dtype).to(device), persistent=False)
        self.rotary: torch.Tensor

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H], after the final norm, from ids [T] and positions [T]."""
        x = F.embedding(input_ids, self.embedding)
        cos, sin = rotary_at(self.rotary, positions)
        for layer in self.layers:
            x = layer(x, cos, sin)
        hidden: torch.Tensor = self.norm(x)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V] from hidden [N, H]."""
        logits: torch.Tensor = packed_linear(hidden, self.head, None)
        return logits

    def checkpoint_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each checkpoint tensor's name and what it fills; tied ones fill the same."""
        yield "model.embed_tokens.weight", self.embedding
        for index, layer in enumerate(self._layers()):
            yield from layer.checkpoint_tensors(f"model.layers.{index}.")
        yield "model.norm.weight", self.norm.weight
        yield "lm_head.weight", self.head

    def _layers(self) -> Iterator[Layer]:
        return (layer for layer in self.layers if isinstance(layer, Layer))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy a checkpoint's tensors into the parameters.

        Raises:
            ModelError: a tensor is missing, unknown, of the wrong shape, or contradicts the one
                that it is tied to; names it.
        """
        fill(
            dict(self.checkpoint_tensors()),
            weights,
            remedy="check that both belong to the same model, or try --model-impl transformers",
        )
