"""Finds root-mean-square norms: by `rms_norm`, or spelled out with a mean of squares."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from engine.patterns.editing import argument, example, inputs, is_call

_MUL = (operator.mul, torch.mul, "mul")
_ADD = (operator.add, torch.add, "add")
_RMS_NORM = (torch.rms_norm, F.rms_norm)
_BINARY = 2
_CASTS = ("to", "type", "type_as", "float", "half", "bfloat16")


@dataclass(frozen=True)
class RmsNorm:
    """`engine.ops.rms_norm(x, weight, eps)` in a graph.

    Attributes:
        x: [..., H], of the result's dtype.
        weight: [H], a parameter.
        eps: added to the mean square.
        nodes: all nodes of the norm, its result included, `x` and `weight` not.
    """

    x: fx.Node
    weight: fx.Node
    eps: float
    nodes: frozenset[fx.Node]


@dataclass(frozen=True)
class _Normed:
    """A value divided by its root mean square, all in one dtype."""

    x: fx.Node
    eps: float
    nodes: frozenset[fx.Node]


def match_rms_norm(result: fx.Node) -> RmsNorm | None:
    """Return the norm whose result a node is, or None.

    It must be computed in float32 and rounded to the dtype of `x` before the weight is applied.
    """
    value = example(result)
    if value is None:
        return None
    weight = argument(result, 2, "weight") if is_call(result, *_RMS_NORM) else None
    if _is_weight(weight, value):
        # With its weight inside nothing is rounded before: in float32 alone that is the same.
        return _joined(result, weight, [], value) if value.dtype == torch.float32 else None
    if not is_call(result, *_MUL) or len(inputs(result)) != _BINARY:
        return None
    for normed, weight in (inputs(result), reversed(inputs(result))):
        if isinstance(normed, fx.Node) and _is_weight(weight, value):
            inner, casts = _before_rounding(normed, value.dtype)
            if found := _joined(inner, weight, [result, *casts], value):
                return found
    return None


def _joined(
    inner: fx.Node, weight: Any, outer: list[fx.Node], value: torch.Tensor
) -> RmsNorm | None:
    found = _by_function(inner, weight if not outer else None) or _spelled_out(inner)
    if found is None or not _has_dtype(inner, torch.float32):
        return None
    x, casts = _before_widening(found.x, value.dtype)
    if not _has_dtype(x, value.dtype):
        return None
    return RmsNorm(x, weight, found.eps, found.nodes | {inner, *outer, *casts})


def _has_dtype(node: fx.Node, dtype: torch.dtype) -> bool:
    value = example(node)
    return value is not None and value.dtype == dtype


def _is_weight(node: Any, value: torch.Tensor) -> bool:
    weight = example(node)
    return (
        weight is not None
        and node.op in ("placeholder", "get_attr")
        and weight.dtype == value.dtype
        and weight.ndim == 1
        and is_size(value.shape[-1], weight.shape[0])
    )


def is_size(size: Any, number: Any) -> bool:
    """Say whether a size is a number, without a guard on the number of tokens."""
    return isinstance(size, int) and isinstance(number, int) and size == number


def _by_function(node: fx.Node, weight: Any) -> _Normed | None:
    """Match `rms_norm` over the last dimension."""
    if not is_call(node, *_RMS_NORM) or argument(node, 2, "weight") is not weight:
        return None
    x, shape, eps = inputs(node)[0], argument(node, 1, "normalized_shape"), argument(node, 3, "eps")
    if not isinstance(x, fx.Node) or not isinstance(eps, float) or len(shape) != 1:
        return None
    return _Normed(x, eps, frozenset({node}))


def _spelled_out(node: fx.Node) -> _Normed | None:
    """Match `x * rsqrt(mean(x²) + eps)`."""
    if not is_call(node, *_MUL) or len(inputs(node)) != _BINARY:
        return None
    for x, factor in (inputs(node), reversed(inputs(node))):
        if not isinstance(x, fx.Node) or not is_call(factor, torch.rsqrt, "rsqrt"):
            continue
        total = inputs(factor)[0]
        if not is_call(total, *_ADD) or total.kwargs or len(inputs(total)) != _BINARY:
            continue
        mean, eps = inputs(total)
        if not isinstance(eps, float) or not _is_last_mean(mean):
            continue
        square = inputs(mean)[0]
        if _is_square(square, x):
            return _Normed(x, eps, frozenset({node, factor, total, mean, square}))
    return None


def _is_last_mean(node: Any) -> bool:
    if not is_call(node, torch.mean, "mean"):
        return False
    dims, keepdim = argument(node, 1, "dim"), argument(node, 2, "keepdim", default=False)
    return keepdim is True and dims in (-1, (-1,), [-1]) and "dtype" not in node.kwargs


def _is_square(node: Any, x: fx.Node) -> bool:
    if is_call(node, operator.pow, torch.pow, "pow"):
        return bool(inputs(node)[0] is x and argument(node, 1, "exponent") in (2, 2.0))
    if is_call(node, torch.square, "square"):
        return inputs(node)[0] is x
    return is_call(node, *_MUL) and inputs(node)[0] is x and inputs(node)[1] is x


def _is_cast(node: Any) -> bool:
    value, source = example(node), example(inputs(node)[0]) if inputs(node) else None
    return (
        is_call(node, *_CASTS)
        and value is not None
        and source is not None
        and value.device == source.device
    )


def _before_rounding(node: fx.Node, dtype: torch.dtype) -> tuple[fx.Node, list[fx.Node]]:
    """Walk back over casts to `dtype`; return what was rounded, and the casts."""
    casts = []
    while _is_cast(node) and _has_dtype(node, dtype):
        casts.append(node)
        node = inputs(node)[0]
    return node, casts


def _before_widening(node: fx.Node, dtype: torch.dtype) -> tuple[fx.Node, list[fx.Node]]:
    """Walk back over casts to float32; return what was widened, and the casts."""
    casts = []
    while _is_cast(node) and _has_dtype(node, torch.float32):
        casts.append(node)
        node = inputs(node)[0]
        if _has_dtype(node, dtype) and dtype != torch.float32:
            break
    return node, casts
