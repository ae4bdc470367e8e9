"""The attention operator: the one place where a model meets the KV cache."""

from __future__ import annotations

import torch

from engine import forward_context
from engine.attention import Rotation
from engine.ops.break_ops import break_op
from engine.ops.fused import qk_norm_rope


@break_op("engine::attention", mutates_args=("out",))
def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, layer: int
) -> None:
    context = forward_context.current()
    context.attention.forward(
        query, key, value, out, context.caches[layer], context.specs[layer], context.metadata
    )


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int
) -> torch.Tensor:
    """Attend causally over the request's context, after storing this step's keys and values.

    Args:
        query: [T, H, D].
        key: [T, K, D].
        value: [T, K, D].
        layer: index into the model's `attention_specs`.

    Returns:
        [T, H, D], freshly allocated by the caller's side of the break, so that a graph segment
        owns its address.
    """
    out = torch.empty_like(query)
    _attention(query, key, value, out, layer)
    return out


@break_op("engine::rotating_attention", mutates_args=("out",))
def rotating_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    signed: bool,
    out: torch.Tensor,
    layer: int,
) -> None:
    """Normalise and rotate queries and keys (`qk_norm_rope`), store keys and values, attend.

    What passes put in the place of both. It is one break op because where keys go is known to
    the step alone; an attention implementation that rotates does it while it stores.

    Args:
        query: [T, H, D], not rotated.
        key: [T, K, D], not rotated.
        value: [T, K, D].
        query_weight: [D], of the norm over each query head; None where there is none.
        key_weight: [D], of the norm over each key head; likewise.
        eps: added to the mean square of a head.
        cos: [T, 1, R].
        sin: [T, 1, R].
        signed: the first half of `sin` is negated already.
        out: [T, H, D], to be written.
        layer: index into the model's `attention_specs`.
    """
    context = forward_context.current()
    attention, cache, spec = context.attention, context.caches[layer], context.specs[layer]
    if attention.ROTATES:
        rotation = Rotation(cos, sin, signed, query_weight, key_weight, eps)
        attention.forward_rotating(query, key, value, rotation, out, cache, spec, context.metadata)
        return
    query = qk_norm_rope(query, query_weight, None, query.shape[1], eps, cos, sin, signed)
    key = qk_norm_rope(key, None, key_weight, 0, eps, cos, sin, signed)
    attention.forward(query, key, value, out, cache, spec, context.metadata)
