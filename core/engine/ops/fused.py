"""Operators that do in one kernel what a layer does between its products.

Each is defined by its reference in torch. The kernels compute in float32 and round where the
reference's result is rounded: sums and normalised values to the dtype of the input, everything
else once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.ops.activation import silu_and_mul
from engine.ops.norm import rms_norm
from engine.ops.operator import operator
from engine.ops.rotary import apply_rotary


def _launch(name: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        from engine.ops import launches

        launch: Callable[..., Any] = getattr(launches, name)
        return launch

    return load


def _half(gate_up: torch.Tensor) -> torch.Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


@operator("engine::silu_mul", fake=_half, cuda=_launch("silu_mul"))
def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`.

    Args:
        gate_up: [..., 2 * I], the gate first.

    Returns:
        [..., I].
    """
    return silu_and_mul(gate_up)


def _two(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@operator("engine::add_rms_norm", fake=_two, cuda=_launch("add_rms_norm"))
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, then normalise the sum (`engine.ops.rms_norm`).

    Args:
        x: [..., H].
        residual: [..., H].
        weight: [H].
        eps: added to the mean square.

    Returns:
        the normalised sum and the sum, [..., H] each.
    """
    total = (x + residual).contiguous()
    return rms_norm(total, weight, eps), total


def _same(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@operator("engine::qk_norm_rope", fake=_same, cuda=_launch("qk_norm_rope"))
def qk_norm_rope(
    x: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    heads: int,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    signed: bool,
) -> torch.Tensor:
    """Normalise each head where there is a weight, then rotate it (`engine.ops.apply_rotary`).

    Args:
        x: [T, N, D], queries first; any strides within which a head is packed.
        query_weight: [D], of the first `heads` heads; None when they aren't normalised.
        key_weight: [D], of the other heads; likewise.
        heads: of N, how many are queries.
        eps: added to the mean square of a head.
        cos: [T, 1, R], R at most D.
        sin: [T, 1, R].
        signed: the first half of `sin` is negated already, as `engine.ops.rotary_at` has it.

    Returns:
        [T, N, D], packed.
    """
    if not signed:
        first, second = sin.chunk(2, dim=-1)
        sin = torch.cat((-first, second), dim=-1)
    parts = [x[:, :heads], x[:, heads:]]
    for index, weight in enumerate((query_weight, key_weight)):
        if weight is not None:
            parts[index] = rms_norm(parts[index], weight, eps)
    return apply_rotary(torch.cat(parts, dim=1), cos, sin)
