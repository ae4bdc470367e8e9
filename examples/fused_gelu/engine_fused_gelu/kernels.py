"""gelu(gate) * up in one Triton kernel: read twice, written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.ops import launch, overlap
from engine.ops.overlap_kernels import wait_for_inputs

_BLOCK = 1024


@triton.jit
def gelu_mul_kernel(
    gate, up, out, width, gate_stride, up_stride, block: tl.constexpr, early: tl.constexpr
):
    """Compute one block of one row."""
    # The kernel before this one may still run: nothing is read before its results are there.
    wait_for_inputs(early)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    g = tl.load(gate + row * gate_stride + column, mask=inside).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=inside).to(tl.float32)
    activated = 0.5 * g * (1.0 + tl.math.erf(g * 0.7071067811865476)) * u
    tl.store(out + row * width + column, activated.to(out.dtype.element_ty), mask=inside)


def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) * up; the grid depends on shapes only, so that it can be recorded."""
    width = gate.shape[-1]
    gate, up = (t if t.stride(-1) == 1 else t.contiguous() for t in (gate, up))
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    rows = gate.numel() // width
    if rows:
        grid = (rows, triton.cdiv(width, _BLOCK))
        strides = gate.stride(0), up.stride(0)
        options = {"block": _BLOCK, **overlap(out.device)}
        launch(gelu_mul_kernel, grid, gate, up, out, width, *strides, **options)
    return out
