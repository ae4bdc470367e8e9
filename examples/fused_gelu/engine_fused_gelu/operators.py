"""The fused operator, and the break op that looks at its result.

Shapes: gate and up [T, I], contiguous or not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch.nn import functional as F

from engine.ops import break_op, operator

logger = logging.getLogger(__name__)
LIMIT = 1e4
"""A larger activation is told: in 16 bits it is near the end of what can be added up."""


def _kernel() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    from engine_fused_gelu import kernels

    return kernels.gelu_mul


@operator(
    "engine_fused_gelu::gelu_mul",
    fake=lambda gate, _up: torch.empty(gate.shape, dtype=gate.dtype, device=gate.device),
    cuda=_kernel,
)
def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) * up, [T, I], in the inputs' dtype; the reference of the kernel."""
    return (F.gelu(gate.float()) * up.float()).to(gate.dtype).contiguous()


@break_op("engine_fused_gelu::note_largest", mutates_args=("largest",))
def note_largest(x: torch.Tensor, largest: torch.Tensor) -> None:
    """Write the largest absolute value of x into largest [1], and log one beyond the limit.

    It waits for the device, which no recorded graph can do: hence a break op.
    """
    largest.fill_(0.0 if x.numel() == 0 else x.abs().max())
    if float(largest) > LIMIT:
        logger.warning("an activation of %g, beyond %g", float(largest), LIMIT)
