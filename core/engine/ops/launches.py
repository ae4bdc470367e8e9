"""Launches the kernels of the fused operators; geometry depends on shapes alone."""

from __future__ import annotations

import torch
import triton

from engine.ops.kernels import add_rms_norm_rows, qk_norm_rope_heads, silu_mul_rows
from engine.ops.launching import launch
from engine.ops.likeliest_kernels import largest_of_blocks, largest_of_rows
from engine.ops.overlapping import overlap


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return [rows, size]; a view unless the strides forbid it."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Launch `engine.ops.silu_mul`."""
    rows, size = _rows(gate_up), gate_up.shape[-1] // 2
    out = gate_up.new_empty((*gate_up.shape[:-1], size))
    block = min(1024, triton.next_power_of_2(size))
    if rows.shape[0]:
        launch(
            silu_mul_rows,
            (rows.shape[0], triton.cdiv(size, block)),
            rows,
            out,
            rows.stride(0),
            size=size,
            block=block,
            num_warps=4,
            **overlap(rows.device),
        )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch `engine.ops.add_rms_norm`."""
    left, right, size = _rows(x), _rows(residual), x.shape[-1]
    normed, total = x.new_empty(x.shape), x.new_empty(x.shape)
    block = triton.next_power_of_2(size)
    if left.shape[0]:
        launch(
            add_rms_norm_rows,
            (left.shape[0],),
            left,
            right,
            weight,
            normed,
            total,
            left.stride(0),
            right.stride(0),
            eps,
            size=size,
            block=block,
            num_warps=max(1, min(16, block // 256)),
            **overlap(left.device),
        )
    return normed, total


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
    """Launch `engine.ops.qk_norm_rope`."""
    x, cos, sin = (t if t.stride(-1) == 1 else t.contiguous() for t in (x, cos, sin))
    tokens, total, depth = x.shape
    out = x.new_empty(x.shape)
    tile = 4
    if tokens:
        launch(
            qk_norm_rope_heads,
            (tokens, triton.cdiv(total, tile)),
            x,
            query_weight if query_weight is not None else x,
            key_weight if key_weight is not None else x,
            cos,
            sin,
            out,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            sin.stride(0),
            eps,
            heads=total,
            queries=heads,
            depth=depth,
            rotated=cos.shape[-1],
            signed=signed,
            query_norm=query_weight is not None and heads > 0,
            key_norm=key_weight is not None and heads < total,
            padded_depth=triton.next_power_of_2(depth),
            tile=tile,
            num_warps=4,
            **overlap(x.device),
        )
    return out


def likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch `engine.ops.likeliest`."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, size = logits.shape
    tokens = logits.new_empty(rows, dtype=torch.int64)
    numbers = logits.new_empty((2, rows), dtype=torch.float64)
    if not rows:
        return tokens, numbers
    block = 2048
    blocks = triton.cdiv(size, block)
    tops = logits.new_empty((rows, blocks), dtype=torch.float32)
    ids = logits.new_empty((rows, blocks), dtype=torch.int32)
    launch(
        largest_of_blocks,
        (rows, blocks),
        logits,
        tops,
        ids,
        size,
        logits.stride(0),
        blocks,
        block=block,
        num_warps=4,
        **overlap(logits.device),
    )
    launch(
        largest_of_rows,
        (rows,),
        tops,
        ids,
        tokens,
        numbers,
        rows,
        blocks,
        padded_blocks=triton.next_power_of_2(blocks),
        num_warps=1,
        **overlap(logits.device),
    )
    return tokens, numbers
