"""Cuts a graph where OpenVINO can't go: operators that aren't PyTorch's own stay in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx.passes.split_module import split_module

_OWN = ("aten", "prim", "prims", "_C")
_BUFFERS = (torch.empty, torch.empty_like)
"""What makes buffers for attention to write to; OpenVINO has nothing like it."""


def is_foreign(node: fx.Node) -> bool:
    """Say whether a node calls an operator of somebody else (attention, a fused operator)."""
    target: Any = node.target
    if target in _BUFFERS:
        return True
    if node.op != "call_function" or not isinstance(target, OpOverload | OpOverloadPacket):
        return False
    name = str(target).partition(".")[0]
    return name not in _OWN


def without_sizes(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a copy in which a number of tokens that is an argument is read off a tensor instead.

    The placeholders stay, so that the callable takes what the caller gives.
    """
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    copy = fx.GraphModule(graph, copied)
    placeholders = copied.find_nodes(op="placeholder")
    tensors = [node for node in placeholders if isinstance(_value(node), torch.Tensor)]
    for node in placeholders:
        value = _value(node)
        if not isinstance(value, torch.SymInt) or not node.users:
            continue
        owner, dim = next(
            (other, dim)
            for other in tensors
            for dim, size in enumerate(_value(other).shape)
            if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr
        )
        with copied.inserting_after(placeholders[-1]):
            size = copied.call_method("size", (owner, dim))
        size.meta["example_value"] = value
        node.replace_all_uses_with(size)
    copy.recompile()
    return copy


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def cut(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a module of segments `submod_0`, `submod_1`, …; foreign operators are alone in one."""
    number, last = 0, False
    numbers: dict[fx.Node, int] = {}
    values = {node.name: node.meta.pop("example_value", None) for node in graph.graph.nodes}
    for node in graph.graph.nodes:
        foreign = is_foreign(node)
        if foreign or last:
            number += 1
        last = foreign
        numbers[node] = number
    # Without values, or it would hand symbolic sizes from segment to segment.
    whole = split_module(graph, graph, numbers.__getitem__, keep_original_order=True)
    for _, segment in segments_of(whole):
        for node in segment.graph.find_nodes(op="placeholder"):
            node.meta["example_value"] = values[node.name]
    return whole


def segments_of(whole: fx.GraphModule) -> list[tuple[str, fx.GraphModule]]:
    """Return the segments of `cut` with their names, in order."""
    return [(n, one) for n, one in whole.named_children() if isinstance(one, fx.GraphModule)]
