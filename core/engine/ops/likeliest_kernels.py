"""Triton kernels that find the largest of each row: a program for each block, then one a row."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.overlap_kernels import wait_for_inputs


@triton.jit
def _largest(values, ids, real):
    """Return the largest value and the lowest id that has it; NaN is larger than all."""
    missing: tl.constexpr = 2147483647
    is_nan = (values != values) & real
    has_nan = tl.max(is_nan.to(tl.int32), 0) > 0
    top = tl.max(tl.where(real & (values == values), values, float("-inf")), 0)
    chosen = tl.where(has_nan, is_nan, real & (values == top))
    return tl.where(has_nan, float("nan"), top), tl.min(tl.where(chosen, ids, missing), 0)


@triton.jit
def largest_of_blocks(
    logits, tops, ids, size, row_stride, blocks, block: tl.constexpr, early: tl.constexpr
):
    """Grid (rows, blocks): the largest of one block of a row."""
    wait_for_inputs(early)
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * block + tl.arange(0, block)
    real = at < size
    values = tl.load(logits + row.to(tl.int64) * row_stride + at, mask=real, other=0.0)
    top, first = _largest(values.to(tl.float32), at, real)
    tl.store(tops + row * blocks + part, top)
    tl.store(ids + row * blocks + part, first)


@triton.jit
def largest_of_rows(
    tops, ids, tokens, numbers, rows, blocks, padded_blocks: tl.constexpr, early: tl.constexpr
):
    """Grid (rows,): the largest of a row's blocks, as a token and as two numbers to read back."""
    wait_for_inputs(early)
    row = tl.program_id(0)
    part = tl.arange(0, padded_blocks)
    real = part < blocks
    values = tl.load(tops + row * blocks + part, mask=real, other=0.0)
    top, first = _largest(values, tl.load(ids + row * blocks + part, mask=real, other=0), real)
    tl.store(tokens + row, first.to(tl.int64))
    tl.store(numbers + row, first.to(tl.float64))
    tl.store(numbers + rows + row, top.to(tl.float64))
