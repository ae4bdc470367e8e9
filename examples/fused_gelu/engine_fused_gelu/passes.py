"""Finds what the operator stands for, and what it gave."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from engine.plugin import Numerics
from engine.strategies import Pass
from engine_fused_gelu.operators import gelu_mul

_MULTIPLY = (operator.mul, torch.mul)


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _is_gelu(node: Any) -> bool:
    """Say whether a node is an exact gelu that nobody else needs."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or len(node.users) != 1:
        return False
    exact = node.kwargs.get("approximate", "none") == "none" and len(node.args) == 1
    return node.target is F.gelu and exact


def _alike(one: fx.Node, other: Any) -> bool:
    """Say whether two values are tensors of one shape, of two dimensions, and one dtype."""
    a, b = _value(one), _value(other)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return a.ndim == b.ndim == 2 and a.dtype == b.dtype and str(a.shape) == str(b.shape)


class FusedGelu(Pass):
    """Turns `gelu(gate) * up` into `engine_fused_gelu::gelu_mul(gate, up)`."""

    NAME = "fused_gelu"
    SUMMARY = "compute gelu(gate) * up in one operator, a Triton kernel on CUDA"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each product of a gelu."""
        fired = 0
        for node in list(graph.graph.nodes):
            if node.op != "call_function" or node.target not in _MULTIPLY or len(node.args) != 2:
                continue
            for gelu, up in (node.args, node.args[::-1]):
                if not _is_gelu(gelu) or not _alike(gelu, up):
                    continue
                with graph.graph.inserting_before(node):
                    fused = graph.graph.call_function(gelu_mul.overload, (gelu.args[0], up))
                fused.meta.update(node.meta)
                node.replace_all_uses_with(fused)
                graph.graph.erase_node(node)
                graph.graph.erase_node(gelu)
                fired += 1
                break
        return fired


class GeluWatch(Pass):
    """Puts the break op `engine_fused_gelu::note_largest` after each fused operator."""

    NAME = "gelu_watch"
    SUMMARY = "tell of large activations after each fused gelu, at a break op"
    STAGE = "graph"
    AFTER = ("fused_gelu",)

    def run(self, graph: fx.GraphModule) -> int:
        """Insert a buffer and the break op that writes it."""
        fired = 0
        for node in graph.graph.find_nodes(op="call_function", target=gelu_mul.overload):
            value = _value(node)
            with graph.graph.inserting_after(node):
                largest = graph.graph.call_method(
                    "new_empty", (node, (1,)), {"dtype": torch.float32}
                )
            largest.meta["example_value"] = value.new_empty((1,), dtype=torch.float32)
            with graph.graph.inserting_after(largest):
                target = torch.ops.engine_fused_gelu.note_largest.default
                graph.graph.call_function(target, (node, largest))
            fired += 1
        return fired
