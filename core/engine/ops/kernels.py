"""Triton kernels of the fused operators; `rotated_head` is there for attention kernels too."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.overlap_kernels import wait_for_inputs


@triton.jit
def silu_mul_rows(
    gate_up, out, row_stride, size: tl.constexpr, block: tl.constexpr, early: tl.constexpr
):
    """One program computes a block of one row; `gate_up` is [rows, 2 * size]."""
    wait_for_inputs(early)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    mask = at < size
    gate = tl.load(gate_up + row * row_stride + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + size + at, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * size + at, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_rms_norm_rows(
    x,
    residual,
    weight,
    normed,
    total,
    x_stride,
    residual_stride,
    eps,
    size: tl.constexpr,
    block: tl.constexpr,
    early: tl.constexpr,
):
    """One program adds and normalises one row of `size` values."""
    wait_for_inputs(early)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    mask = at < size
    left = tl.load(x + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(residual + row * residual_stride + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    # The sum that is handed on is the one that is normalised.
    added = (left + right).to(total.dtype.element_ty)
    tl.store(total + row * size + at, added, mask=mask)
    wide = added.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / size + eps)
    rounded = (wide * factor).to(normed.dtype.element_ty).to(tl.float32)
    tl.store(normed + row * size + at, (rounded * scale).to(normed.dtype.element_ty), mask=mask)


@triton.jit
def rotated_heads(
    x,
    offsets,
    mask,
    lane,
    is_query,
    query_weight,
    key_weight,
    cos,
    sin,
    eps,
    depth: tl.constexpr,
    rotated: tl.constexpr,
    signed: tl.constexpr,
    query_norm: tl.constexpr,
    key_norm: tl.constexpr,
):
    """Load heads, normalise and rotate them: [heads, depth] in float32.

    `offsets` [heads, 1] says where each begins, `mask` [heads, lanes] what exists, `is_query`
    [heads, 1] which weight is meant. `cos` and `sin` are those of this token, [rotated].
    """
    half: tl.constexpr = rotated // 2
    # The place that each lane is rotated against; lanes beyond the rotated part stay alone.
    partner = tl.where(lane < half, lane + half, tl.where(lane < rotated, lane - half, lane))
    dtype = x.dtype.element_ty
    own = tl.load(x + offsets + lane[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(x + offsets + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if query_norm or key_norm:
        factor = 1.0 / tl.sqrt(tl.sum(own * own, 1) / depth + eps)
        normed = (own * factor[:, None]).to(dtype).to(tl.float32)
        normed_other = (other * factor[:, None]).to(dtype).to(tl.float32)
        inside = lane < depth
        if query_norm:
            here = tl.load(query_weight + lane, mask=inside, other=0.0).to(tl.float32)
            there = tl.load(query_weight + partner, mask=inside, other=0.0).to(tl.float32)
            own = tl.where(is_query, (normed * here[None, :]).to(dtype).to(tl.float32), own)
            other = tl.where(
                is_query, (normed_other * there[None, :]).to(dtype).to(tl.float32), other
            )
        if key_norm:
            here = tl.load(key_weight + lane, mask=inside, other=0.0).to(tl.float32)
            there = tl.load(key_weight + partner, mask=inside, other=0.0).to(tl.float32)
            own = tl.where(is_query, own, (normed * here[None, :]).to(dtype).to(tl.float32))
            other = tl.where(
                is_query, other, (normed_other * there[None, :]).to(dtype).to(tl.float32)
            )
    turns = lane < rotated
    c = tl.load(cos + lane, mask=turns, other=1.0).to(tl.float32)
    s = tl.load(sin + lane, mask=turns, other=0.0).to(tl.float32)
    if not signed:
        s = tl.where(lane < half, -s, s)
    return own * c[None, :] + other * s[None, :]


@triton.jit
def qk_norm_rope_heads(
    x,
    query_weight,
    key_weight,
    cos,
    sin,
    out,
    token_stride,
    head_stride,
    cos_stride,
    sin_stride,
    eps,
    heads: tl.constexpr,
    queries: tl.constexpr,
    depth: tl.constexpr,
    rotated: tl.constexpr,
    signed: tl.constexpr,
    query_norm: tl.constexpr,
    key_norm: tl.constexpr,
    padded_depth: tl.constexpr,
    tile: tl.constexpr,
    early: tl.constexpr,
):
    """One program normalises and rotates `tile` heads of one token."""
    wait_for_inputs(early)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * tile + tl.arange(0, tile)
    lane = tl.arange(0, padded_depth)
    mask = (head < heads)[:, None] & (lane < depth)[None, :]
    result = rotated_heads(
        x,
        token * token_stride + head[:, None] * head_stride,
        mask,
        lane,
        (head < queries)[:, None],
        query_weight,
        key_weight,
        cos + token * cos_stride,
        sin + token * sin_stride,
        eps,
        depth,
        rotated,
        signed,
        query_norm,
        key_norm,
    )
    to = (token * heads + head[:, None]) * depth + lane[None, :]
    tl.store(out + to, result.to(out.dtype.element_ty), mask=mask)
