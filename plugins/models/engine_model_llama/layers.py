"""Parameters that know their place in a checkpoint.

A checkpoint keeps query, key and value (gate and up) apart; here they are one matrix, so that
one product computes them. Each module yields, for every tensor of a checkpoint, the part of a
parameter that it fills.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.nn import functional as F

from engine.ops import rms_norm


def parameter(*shape: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """Return an uninitialised parameter that needs no gradient."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class Linear(nn.Module):
    """One or more linear maps of the same input, computed as one.

    Args:
        inputs: I.
        parts: the checkpoint's name of each map, and its number of outputs; O in all.
        bias: whether the maps have one.
        dtype: of the parameters.
        device: of the parameters.
    """

    def __init__(
        self,
        inputs: int,
        parts: Mapping[str, int],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        outputs = sum(parts.values())
        self._parts = dict(parts)
        self.weight = parameter(outputs, inputs, dtype=dtype, device=device)
        self.bias = parameter(outputs, dtype=dtype, device=device) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, O] from [T, I]."""
        return F.linear(x, self.weight, self.bias)

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor's name and the part of a parameter that it fills."""
        start = 0
        for name, size in self._parts.items():
            yield f"{prefix}{name}.weight", self.weight[start : start + size]
            if self.bias is not None:
                yield f"{prefix}{name}.bias", self.bias[start : start + size]
            start += size


class RMSNorm(nn.Module):
    """`engine.ops.rms_norm` with its weight."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._eps = eps
        self.weight = parameter(size, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised [..., H]."""
        return rms_norm(x, self.weight, self._eps)
