"""The attention operator: the one place where a model meets the KV cache."""

from __future__ import annotations

import torch

from engine import forward_context
from engine.ops.break_ops import break_op


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
