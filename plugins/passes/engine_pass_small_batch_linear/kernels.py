"""Triton kernels: few rows times a large matrix, at the speed at which the matrix can be read.

With few rows every weight is used a few times only, so the time is that of reading the weights
once. What is left to win over a general product is to keep enough reads in flight: small matrices
are cut along the inner dimension too, so that every multiprocessor has a part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.overlap_kernels import wait_for_inputs


@triton.jit
def few_rows(
    x,
    weight,
    bias,
    residual,
    out,
    partials,
    arrived,
    rows,
    outputs,
    inputs,
    x_stride,
    residual_stride,
    tile_rows: tl.constexpr,
    tile_out: tl.constexpr,
    tile_in: tl.constexpr,
    parts: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
    gated: tl.constexpr,
    exact: tl.constexpr,
    early: tl.constexpr,
):
    """Compute `tile_out` outputs of all rows, or a part of their sums.

    Grid (outputs / tile_out, parts). With several parts, each leaves its sums in `partials`
    [parts, outputs, tile_rows] float32, and the last one to arrive adds them up, always in the
    same order, so that the result doesn't depend on who that is. `arrived` is zero before and
    after.

    `gated`: the matrix has twice the outputs; the result is silu(first half) * second half. Only
    for a single part.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    n = tile * tile_out + tl.arange(0, tile_out)
    m = tl.arange(0, tile_rows)
    wanted, live = n < outputs, m < rows
    gate_sums = tl.zeros([tile_out, tile_rows], tl.float32)
    up_sums = tl.zeros([tile_out, tile_rows], tl.float32)
    steps = tl.cdiv(inputs, tile_in * parts)
    first = part * steps * tile_in
    wait_for_inputs(early)
    for step in range(steps):
        k = first + step * tile_in + tl.arange(0, tile_in)
        inside = k < inputs
        at = n[:, None].to(tl.int64) * inputs + k[None, :]
        seen = wanted[:, None] & inside[None, :]
        w = tl.load(weight + at, mask=seen, other=0.0, eviction_policy="evict_first")
        v = tl.load(
            x + m[None, :] * x_stride + k[:, None], mask=live[None, :] & inside[:, None], other=0.0
        )
        if exact:
            gate_sums += tl.dot(w, v, input_precision="ieee")
        else:
            gate_sums += tl.dot(w, v)
        if gated:
            u = tl.load(
                weight + outputs.to(tl.int64) * inputs + at,
                mask=seen,
                other=0.0,
                eviction_policy="evict_first",
            )
            if exact:
                up_sums += tl.dot(u, v, input_precision="ieee")
            else:
                up_sums += tl.dot(u, v)
    if parts > 1:
        plane = outputs * tile_rows
        place = n[:, None] * tile_rows + m[None, :]
        tl.store(partials + part * plane + place, gate_sums, mask=wanted[:, None])
        tl.debug_barrier()
        last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == parts - 1
        if last:
            gate_sums = tl.zeros([tile_out, tile_rows], tl.float32)
            for other in range(parts):
                gate_sums += tl.load(
                    partials + other * plane + place, mask=wanted[:, None], other=0.0
                )
            tl.store(arrived + tile, 0)
            _finish(
                gate_sums, up_sums, bias, residual, out, n, m, wanted, live, outputs,
                residual_stride, has_bias, has_residual, gated,
            )  # fmt: skip
    else:
        _finish(
            gate_sums, up_sums, bias, residual, out, n, m, wanted, live, outputs,
            residual_stride, has_bias, has_residual, gated,
        )  # fmt: skip


@triton.jit
def _finish(
    gate_sums, up_sums, bias, residual, out, n, m, wanted, live, outputs, residual_stride,
    has_bias: tl.constexpr, has_residual: tl.constexpr, gated: tl.constexpr,
):  # fmt: skip
    """Add bias and residual, or gate, and store; rounded where the reference rounds."""
    dtype = out.dtype.element_ty
    if has_bias:
        gate_sums += tl.load(bias + n, mask=wanted, other=0.0).to(tl.float32)[:, None]
        if gated:
            up_sums += tl.load(bias + outputs + n, mask=wanted, other=0.0).to(tl.float32)[:, None]
    if gated:
        gate = gate_sums.to(dtype).to(tl.float32)
        gate_sums = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32) * up_sums.to(dtype)
    stored = wanted[:, None] & live[None, :]
    if has_residual:
        gate_sums = gate_sums.to(dtype).to(tl.float32)
        gate_sums += tl.load(
            residual + m[None, :] * residual_stride + n[:, None], mask=stored, other=0.0
        ).to(tl.float32)
    tl.store(out + m[None, :].to(tl.int64) * outputs + n[:, None], gate_sums.to(dtype), mask=stored)


@triton.jit
def one_row(
    x,
    weight,
    bias,
    residual,
    out,
    outputs,
    inputs,
    tile_out: tl.constexpr,
    tile_in: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
    gated: tl.constexpr,
    early: tl.constexpr,
):
    """Compute `tile_out` outputs of a single row; grid (outputs / tile_out,).

    Multiplying one by one keeps up with the reads here, and nothing has to be added up across
    programs.
    """
    n = tl.program_id(0) * tile_out + tl.arange(0, tile_out)
    wanted = n < outputs
    wait_for_inputs(early)
    gate = tl.zeros([tile_out, tile_in], tl.float32)
    up = tl.zeros([tile_out, tile_in], tl.float32)
    for first in range(0, inputs, tile_in):
        k = first + tl.arange(0, tile_in)
        inside = k < inputs
        at = n[:, None].to(tl.int64) * inputs + k[None, :]
        seen = wanted[:, None] & inside[None, :]
        v = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)[None, :]
        w = tl.load(weight + at, mask=seen, other=0.0, eviction_policy="evict_first")
        gate += w.to(tl.float32) * v
        if gated:
            u = tl.load(
                weight + outputs.to(tl.int64) * inputs + at,
                mask=seen,
                other=0.0,
                eviction_policy="evict_first",
            )
            up += u.to(tl.float32) * v
    dtype = out.dtype.element_ty
    total = tl.sum(gate, 1)
    if has_bias:
        total += tl.load(bias + n, mask=wanted, other=0.0).to(tl.float32)
    if gated:
        other = tl.sum(up, 1)
        if has_bias:
            other += tl.load(bias + outputs + n, mask=wanted, other=0.0).to(tl.float32)
        total = total.to(dtype).to(tl.float32)
        total = (total * tl.sigmoid(total)).to(dtype).to(tl.float32) * other.to(dtype)
    if has_residual:
        total = total.to(dtype).to(tl.float32)
        total += tl.load(residual + n, mask=wanted, other=0.0).to(tl.float32)
    tl.store(out + n, total.to(dtype), mask=wanted)
