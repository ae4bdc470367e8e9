"""The product with a weight that a CPU keeps in the order in which it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from engine.ops.operator import operator


def _on_cpu() -> Callable[..., Any]:
    from engine.ops import packed_weights

    return packed_weights.linear


def _fake(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@operator("engine::packed_linear", fake=_fake, cpu=_on_cpu)
def packed_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `x @ weight.T + bias`.

    On a CPU a weight that is a parameter is packed for its vector units at the first call, and kept
    beside the parameter as long as that lives; changed in place, it is packed anew. Every other
    weight, and every other device, takes the general product.

    Args:
        x: [..., I].
        weight: [O, I].
        bias: [O].

    Returns:
        [..., O].
    """
    return F.linear(x, weight, bias)
