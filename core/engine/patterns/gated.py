"""Finds `silu(gate) * up` of one projection."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from engine.patterns.editing import argument, example, inputs, is_call
from engine.patterns.norms import is_size

_PAIR = 2


@dataclass(frozen=True)
class Gated:
    """A product of a gate and the rest.

    Attributes:
        source: what is cut in two halves, the gate first.
        nodes: from the cut to the product.
    """

    source: fx.Node
    nodes: frozenset[fx.Node]


def match_gated(product: fx.Node) -> Gated | None:
    """Return the parts of `silu(gate) * up`, if a node is that of one tensor's equal halves."""
    if not is_call(product, operator.mul, torch.mul, "mul") or len(inputs(product)) != _PAIR:
        return None
    for silu, up in (inputs(product), reversed(inputs(product))):
        if not is_call(silu, F.silu, "silu") or silu.kwargs.get("inplace"):
            continue
        gate = inputs(silu)[0]
        if not _is_part(gate, 0) or not _is_part(up, 1) or inputs(gate)[0] is not inputs(up)[0]:
            continue
        halves = inputs(gate)[0]
        source = inputs(halves)[0] if inputs(halves) else None
        if isinstance(source, fx.Node) and _halves(halves, source):
            return Gated(source, frozenset({product, silu, gate, up, halves}))
    return None


def _is_part(node: Any, index: int) -> bool:
    return is_call(node, operator.getitem) and inputs(node)[1] == index


def _halves(node: fx.Node, source: Any) -> bool:
    """Say whether a node cuts its source in two equal halves along the last dimension."""
    value = example(source)
    if value is None or not isinstance(value.shape[-1], int):
        return False
    size, dim = value.shape[-1], argument(node, 2, "dim", 0)
    if size % _PAIR or dim not in (-1, value.ndim - 1):
        return False
    half = size // _PAIR
    if is_call(node, torch.chunk, "chunk"):
        return is_size(argument(node, 1, "chunks"), _PAIR)
    if is_call(node, torch.split, "split"):
        sizes = argument(node, 1, "split_size_or_sections") or argument(node, 1, "split_size")
        return sizes == half or (isinstance(sizes, list | tuple) and list(sizes) == [half, half])
    return False
