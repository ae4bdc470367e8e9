"""`silu(gate) * up` of one projection."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from engine.ops import silu_mul
from engine.patterns import GraphEditor, argument, example, inputs, is_call, is_size
from engine.plugin import Numerics
from engine.strategies import Pass

_PAIR = 2


class SiluMul(Pass):
    """Puts `engine::silu_mul` in the place of a chunk, an activation and a product.

    A projection that is cut otherwise than in two equal halves, or whose halves are used
    elsewhere too, stays as it is.
    """

    NAME = "silu_mul"
    SUMMARY = "SiLU of the gate times the other half of a projection, in one operator"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    AFTER = ("horizontal_fusion",)

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each activation."""
        editor, fired = GraphEditor(graph), 0
        for node in list(graph.graph.nodes):
            found = _match(node)
            if found is None or not editor.closed(found[1], [node]):
                continue
            with editor.before(node):
                new = editor.call(silu_mul.overload, found[0])
            editor.replace(found[1], {node: new})
            fired += 1
        return fired


def _match(product: fx.Node) -> tuple[fx.Node, set[fx.Node]] | None:
    """Return the projection and the nodes between it and the product."""
    if not is_call(product, operator.mul, torch.mul, "mul") or len(inputs(product)) != _PAIR:
        return None
    for silu, up in (inputs(product), reversed(inputs(product))):
        if not is_call(silu, F.silu, "silu") or silu.kwargs.get("inplace"):
            continue
        gate = inputs(silu)[0]
        if not _is_part(gate, 0) or not _is_part(up, 1) or inputs(gate)[0] is not inputs(up)[0]:
            continue
        halves = inputs(gate)[0]
        source: Any = inputs(halves)[0] if inputs(halves) else None
        if _halves(halves, source):
            return source, {product, silu, gate, up, halves}
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
