"""Projections as operators: with their residual, or gated.

Decode multiplies a few tokens with every weight of the model, so its time is that of reading the
weights. A general product doesn't reach it, above all where a matrix has few outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from engine.ops import operator, silu_mul


def _launch(name: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        from engine_pass_small_batch_linear import launches

        launch: Callable[..., Any] = getattr(launches, name)
        return launch

    return load


def _projected(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _gated(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0] // 2))


@operator("engine_small_batch::linear", fake=_projected, cuda=_launch("linear"))
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """Return `x @ weight.T + bias + residual`.

    Args:
        x: [T, I].
        weight: [O, I].
        bias: [O].
        residual: [T, O].

    Returns:
        [T, O].
    """
    result = F.linear(x, weight, bias)
    # Never the input itself, nor a view of it.
    return result if residual is None else result + residual


@operator("engine_small_batch::gated_linear", fake=_gated, cuda=_launch("gated_linear"))
def gated_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `silu(gate) * up` of one projection to both.

    Args:
        x: [T, I].
        weight: [2 * O, I], the gate first.
        bias: [2 * O].

    Returns:
        [T, O].
    """
    gated: torch.Tensor = silu_mul(F.linear(x, weight, bias))
    return gated
