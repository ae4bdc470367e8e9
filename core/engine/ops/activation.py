"""Gated activations."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up` (SwiGLU, arXiv:2002.05202).

    Args:
        gate_up: [..., 2 * I], the gate first.

    Returns:
        [..., I].
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
