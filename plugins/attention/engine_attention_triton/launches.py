"""Picks kernels and launch geometry from padded shapes."""

from __future__ import annotations

from typing import Any

import torch
import triton

from engine.attention import AttentionInputs, AttentionSpec, Rotation
from engine.ops import launch, overlap
from engine_attention_triton.kernels import attend_any, attend_decode, join_splits, store_kv
from engine_attention_triton.rotation_kernels import rotate_and_store

_WAVES = 2
"""Programs per multiprocessor that a decode launch aims at by splitting contexts."""
_TILE = 4
"""Heads that one program rotates."""


def store_and_attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    cache: torch.Tensor,
    spec: AttentionSpec,
    inputs: AttentionInputs,
    *,
    decode: bool,
    rotation: Rotation | None = None,
) -> None:
    """Store this step's keys and values, then attend causally.

    Args:
        query: [T, H, D].
        key: [T, K, D].
        value: [T, K, D].
        out: [T, H, D], to be written.
        cache: [2, blocks, K, block_size, D].
        spec: what the layer asks for.
        inputs: where the tokens lie.
        decode: every request has one token, at its own index.
        rotation: what queries and keys need first; None when they come rotated.
    """
    common: dict[str, Any] = {
        "heads": spec.num_kv_heads,
        "group": spec.num_heads // spec.num_kv_heads,
        "depth": spec.head_size,
        # A matrix product in a kernel has at least 16 columns.
        "padded_depth": max(16, triton.next_power_of_2(spec.head_size)),
        "block_size": inputs.block_size,
    }
    plane = cache.stride(0)
    if rotation is None:
        launch(
            store_kv,
            (query.shape[0], spec.num_kv_heads),
            key,
            value,
            out,
            cache,
            inputs.slots,
            _row_stride(key),
            _row_stride(value),
            _row_stride(out),
            plane,
            **common,
            num_warps=1,
            **overlap(out.device),
        )
    else:
        query = _rotate(query, key, value, out, cache, inputs, rotation, common)
    common |= {
        "window": spec.sliding_window or 0,
        "soft_cap": float(spec.soft_cap or 0.0),
        "exact": query.dtype == torch.float32,
    }
    attend = _decode if decode else _any
    attend(query, out, cache, spec, inputs, plane, common)


def _rotate(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    cache: torch.Tensor,
    inputs: AttentionInputs,
    rotation: Rotation,
    common: dict[str, Any],
) -> torch.Tensor:
    """Rotate queries and keys, store keys and values; return the rotated queries [T, H, D]."""
    rotated = query.new_empty(query.shape)
    cos, sin = rotation.cos, rotation.sin
    if any(tensor.stride(-1) != 1 for tensor in (query, key, cos, sin)):
        raise ValueError("attention needs heads and tables that are packed along their last side")
    query_weight, key_weight = rotation.query_weight, rotation.key_weight
    parts = sum(triton.cdiv(tensor.shape[1], _TILE) for tensor in (query, key))
    launch(
        rotate_and_store,
        (query.shape[0], parts),
        query,
        key,
        value,
        query if query_weight is None else query_weight,
        key if key_weight is None else key_weight,
        cos,
        sin,
        rotated,
        out,
        cache,
        inputs.slots,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        _row_stride(value),
        cos.stride(0),
        sin.stride(0),
        _row_stride(out),
        cache.stride(0),
        rotation.eps,
        **common,
        turned=cos.shape[-1],
        signed=rotation.signed,
        query_norm=query_weight is not None,
        key_norm=key_weight is not None,
        tile=_TILE,
        num_warps=4,
        **overlap(query.device),
    )
    return rotated


def _row_stride(tensor: torch.Tensor) -> int:
    """Return the distance of two tokens; heads and depth must be packed within one.

    Raises:
        ValueError: they aren't, so a kernel would read elsewhere.
    """
    if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
        raise ValueError(f"attention needs packed heads, got strides {tensor.stride()}")
    return tensor.stride(0)


def _any(
    query: torch.Tensor,
    out: torch.Tensor,
    cache: torch.Tensor,
    spec: AttentionSpec,
    inputs: AttentionInputs,
    plane: int,
    common: dict[str, Any],
) -> None:
    group = common["group"]
    exact = common["exact"]
    rows = max(16 if exact else 64, triton.next_power_of_2(group))
    queries = rows // group
    reqs = inputs.seq_lens.shape[0]
    grid = (query.shape[0] // queries + reqs, spec.num_kv_heads)
    launch(
        attend_any,
        grid,
        query,
        out,
        cache,
        inputs.block_tables,
        inputs.query_start,
        inputs.seq_lens,
        reqs,
        _row_stride(query),
        _row_stride(out),
        inputs.block_tables.stride(0),
        plane,
        spec.scale,
        **common,
        tile=32 if exact else 64,
        queries=queries,
        rows=rows,
        num_warps=4,
        num_stages=2,
        **overlap(query.device),
    )


def _decode(
    query: torch.Tensor,
    out: torch.Tensor,
    cache: torch.Tensor,
    spec: AttentionSpec,
    inputs: AttentionInputs,
    plane: int,
    common: dict[str, Any],
) -> None:
    reqs, heads, group = query.shape[0], spec.num_kv_heads, common["group"]
    splits = _splits(reqs * heads, query.device)
    shape = (reqs, heads, splits if splits > 1 else 0, group)
    tops, totals = query.new_empty((2, *shape), dtype=torch.float32).unbind(0)
    sums = query.new_empty((*shape, spec.head_size), dtype=torch.float32)
    launch(
        attend_decode,
        (reqs, heads, splits),
        query,
        cache,
        inputs.block_tables,
        inputs.seq_lens,
        out,
        sums,
        tops,
        totals,
        _row_stride(query),
        _row_stride(out),
        inputs.block_tables.stride(0),
        plane,
        spec.scale,
        **common,
        tile=32 if common["exact"] else 64,
        rows=max(16, triton.next_power_of_2(group)),
        splits=splits,
        num_warps=4,
        num_stages=2,
        **overlap(query.device),
    )
    if splits == 1:
        return
    launch(
        join_splits,
        (reqs, spec.num_heads),
        sums,
        tops,
        totals,
        out,
        _row_stride(out),
        heads=heads,
        group=group,
        depth=spec.head_size,
        padded_depth=common["padded_depth"],
        splits=splits,
        padded_splits=triton.next_power_of_2(splits),
        num_warps=1,
        **overlap(query.device),
    )


def _splits(programs: int, device: torch.device) -> int:
    """Return how many shares a context is cut into, from the padded batch alone."""
    units = 16
    if device.type == "cuda":
        units = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(16, _WAVES * units // programs))
