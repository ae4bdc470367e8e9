"""Chooses between the kernels and a general product, from shapes alone."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
from torch.nn import functional as F

from engine.ops import launch, overlap, silu_mul
from engine_pass_small_batch_linear.kernels import few_rows, one_row

_MOST_ROWS = 32
_TILE_OUT, _TILE_IN = 64, 128
_PARTS = (1, 2, 4, 8)
_LEAST_USED = 0.9
"""Share of the multiprocessors that must have work, or a general product is faster (measured)."""
_MOST_TILES = 4096


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """Launch `operators.linear`."""
    if (result := _launch(x, weight, bias, residual, gated=False)) is not None:
        return result
    if residual is not None and bias is None:
        return torch.addmm(residual, x, weight.t())
    result = F.linear(x, weight, bias)
    return result if residual is None else result.add_(residual)


def gated_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Launch `operators.gated_linear`."""
    if (result := _launch(x, weight, bias, None, gated=True)) is not None:
        return result
    gated: torch.Tensor = silu_mul(F.linear(x, weight, bias))
    return gated


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    gated: bool,
) -> torch.Tensor | None:
    """Return the result, or None where a general product is the better choice."""
    rows, inputs = x.shape
    outputs = weight.shape[0] // (2 if gated else 1)
    if not 1 <= rows <= _MOST_ROWS or x.stride(1) != 1 or not weight.is_contiguous():
        return None
    if residual is not None and residual.stride(1) != 1:
        return None
    flags = {"has_bias": bias is not None, "has_residual": residual is not None, "gated": gated}
    operands = (x, weight, x if bias is None else bias, x if residual is None else residual)
    out = x.new_empty((rows, outputs))
    if rows == 1:
        # Measured on an H200 for the projections of models from 0.6 to 8 billion parameters.
        tile_out, tile_in, warps = (1, 512, 2) if gated else (2, 1024, 4)
        grid = (triton.cdiv(outputs, tile_out),)
        launch(
            one_row,
            grid,
            *operands,
            out,
            outputs,
            inputs,
            tile_out=tile_out,
            tile_in=tile_in,
            **flags,
            num_warps=warps,
            **overlap(x.device),
        )
        return out
    parts = _parts(outputs, inputs, _units(x.device))
    if parts is None or (gated and parts > 1) or (arrived := _counters(x.device)) is None:
        return None
    tiles, tile_rows = triton.cdiv(outputs, _TILE_OUT), max(16, triton.next_power_of_2(rows))
    sums = 0 if parts == 1 else parts * outputs * tile_rows
    launch(
        few_rows,
        (tiles, parts),
        *operands,
        out,
        x.new_empty(sums, dtype=torch.float32),
        arrived,
        rows,
        outputs,
        inputs,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        tile_rows=tile_rows,
        tile_out=_TILE_OUT,
        tile_in=_TILE_IN,
        parts=parts,
        **flags,
        exact=x.dtype == torch.float32,
        num_warps=4,
        num_stages=_stages(tiles * parts, tile_rows, x.itemsize, x.device, gated),
        **overlap(x.device),
    )
    return out


@lru_cache
def _parts(outputs: int, inputs: int, units: int) -> int | None:
    """Return how many parts the inner dimension is cut into; None if no number keeps all busy."""
    tiles = triton.cdiv(outputs, _TILE_OUT)
    if tiles > _MOST_TILES:
        return None
    enough = (
        parts
        for parts in _PARTS
        if inputs // parts >= 2 * _TILE_IN and tiles * parts >= _LEAST_USED * units
    )
    return next(enough, None)


def _stages(programs: int, tile_rows: int, itemsize: int, device: torch.device, gated: bool) -> int:
    """Return how many tiles a program has on their way: together they fill the shared memory.

    Measured on an H200 for the projections of models from 0.6 to 8 billion parameters: a program
    that has a multiprocessor for itself reads far ahead, several on one less each.
    """
    best = 5 if gated else 3 if programs > _units(device) else 8 if tile_rows == 16 else 5
    each = itemsize * _TILE_IN * (_TILE_OUT * (2 if gated else 1) + tile_rows)
    return max(1, min(best, _shared_memory(device) // each))


@lru_cache
def _shared_memory(device: torch.device) -> int:
    """Return the bytes that one program can have; 48 KiB where the driver doesn't say."""
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 48 << 10)


@lru_cache
def _units(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _counters(device: torch.device) -> torch.Tensor | None:
    """Return the zeroed counters of the stream in force, or None where they can't be made now.

    Kernels of one stream follow each other and leave the counters zero. While a graph is being
    recorded nothing may be made that must outlive it.
    """
    stream = torch.cuda.current_stream(device)
    key = device.index, stream.cuda_stream
    if key not in _known and not torch.cuda.is_current_stream_capturing():
        _known[key] = torch.zeros(_MOST_TILES, dtype=torch.int32, device=device)
    return _known.get(key)


_known: dict[tuple[int | None, int], torch.Tensor] = {}
