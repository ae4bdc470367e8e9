"""Finds projections whose weights a CPU can keep packed."""

from __future__ import annotations

import torch
from torch import fx

from engine.ops import packed_linear
from engine.patterns import GraphEditor, argument, example, inputs, is_linear
from engine.plugin import Numerics
from engine.strategies import Pass

_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(Pass):
    """Puts `packed_linear` in the place of every projection on a CPU.

    The general product brings its weight into the order of the vector units at each call; here
    that is done once. It costs the memory of the packed weights.
    """

    NAME = "packed_linear"
    SUMMARY = "projections with weights that are packed once for the processor (CPU)"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    AFTER = ("horizontal_fusion", "small_batch_linear", "silu_mul", "qk_norm_rope", "rope_kv_write")
    ON_BY_DEFAULT = frozenset({"cpu"})

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each projection by a parameter."""
        editor, fired = GraphEditor(graph), 0
        for node in list(graph.graph.nodes):
            if not _can_be_packed(node) or not editor.closed([node], [node]):
                continue
            x, weight = inputs(node)[0], argument(node, 1, "weight")
            with editor.before(node):
                new = editor.call(packed_linear.overload, x, weight, argument(node, 2, "bias"))
            editor.replace({node}, {node: new})
            fired += 1
        return fired


def _can_be_packed(node: fx.Node) -> bool:
    if not is_linear(node):
        return False
    x, weight = example(inputs(node)[0]), argument(node, 1, "weight")
    value = example(weight)
    if x is None or not isinstance(value, torch.nn.Parameter):
        return False
    return x.device.type == "cpu" and x.dtype == value.dtype and x.dtype in _DTYPES
