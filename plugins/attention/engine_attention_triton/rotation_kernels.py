"""The kernel that stores keys and values and rotates queries and keys on the way."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.kernels import rotated_heads
from engine.ops.overlap_kernels import wait_for_inputs


@triton.jit
def rotate_and_store(
    query,
    key,
    value,
    query_weight,
    key_weight,
    cos,
    sin,
    rotated,
    out,
    cache,
    slots,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    cos_stride,
    sin_stride,
    out_stride,
    plane,
    eps,
    heads: tl.constexpr,
    group: tl.constexpr,
    depth: tl.constexpr,
    block_size: tl.constexpr,
    padded_depth: tl.constexpr,
    turned: tl.constexpr,
    signed: tl.constexpr,
    query_norm: tl.constexpr,
    key_norm: tl.constexpr,
    tile: tl.constexpr,
    early: tl.constexpr,
):
    """One program rotates `tile` heads of one token: queries to `rotated`, keys to the cache.

    Values go to the cache with their keys. A slot of -1 means what it does in `store_kv`.
    """
    wait_for_inputs(early)
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, padded_depth)
    slot = tl.load(slots + token)
    queries: tl.constexpr = heads * group
    query_parts: tl.constexpr = (queries + tile - 1) // tile
    if part < query_parts:
        head = (part * tile + tl.arange(0, tile))[:, None]
        mask = (head < queries) & (lane < depth)[None, :]
        result = rotated_heads(
            query,
            token * query_stride + head * query_head_stride,
            mask,
            lane,
            head >= 0,
            query_weight,
            key_weight,
            cos + token * cos_stride,
            sin + token * sin_stride,
            eps,
            depth,
            turned,
            signed,
            query_norm,
            False,
        )
        to = (token * queries + head) * depth + lane[None, :]
        tl.store(rotated + to, result.to(rotated.dtype.element_ty), mask=mask)
        if slot < 0:
            nothing = tl.zeros([tile, padded_depth], out.dtype.element_ty)
            tl.store(out + token * out_stride + head * depth + lane[None, :], nothing, mask=mask)
    elif slot >= 0:
        head = ((part - query_parts) * tile + tl.arange(0, tile))[:, None]
        mask = (head < heads) & (lane < depth)[None, :]
        result = rotated_heads(
            key,
            token * key_stride + head * key_head_stride,
            mask,
            lane,
            head < 0,
            query_weight,
            key_weight,
            cos + token * cos_stride,
            sin + token * sin_stride,
            eps,
            depth,
            turned,
            signed,
            False,
            key_norm,
        )
        place = (slot // block_size) * heads + head
        at = (place * block_size + slot % block_size) * depth + lane[None, :]
        # Rounded as a key is that comes rotated.
        rounded = result.to(key.dtype.element_ty)
        tl.store(cache + at, rounded.to(cache.dtype.element_ty), mask=mask)
        v = tl.load(value + token * value_stride + head * depth + lane[None, :], mask=mask)
        tl.store(cache + plane + at, v.to(cache.dtype.element_ty), mask=mask)
