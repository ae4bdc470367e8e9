"""Linear layers that read the same input."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from engine.joined_weights import join_rows
from engine.patterns import GraphEditor, argument, example, inputs, is_call
from engine.plugin import Numerics
from engine.strategies import Pass

_SEVERAL = 2


class HorizontalFusion(Pass):
    """Makes one product of linear layers with the same input, whose results it then cuts apart.

    Query, key and value, gate and up: where a model keeps them apart, one large product takes
    their place. Their weights are joined once, when the model is compiled, and the parameters
    become views of the joined weight. No weight stays in memory twice; while the weights of one
    group are joined, that group is.
    """

    NAME = "horizontal_fusion"
    SUMMARY = "linear layers of the same input as one product; their weights are joined once"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    BEFORE = ("noop_elimination",)

    def run(self, graph: fx.GraphModule) -> int:
        """Join each group of layers; return the number of groups."""
        editor, fired = GraphEditor(graph), 0
        for group in _groups(graph.graph.nodes):
            seen = {*group, inputs(group[0])[0]}
            if editor.closed(seen, seen):
                _join(editor, group)
                fired += 1
        return fired


def _groups(nodes: Iterable[fx.Node]) -> list[list[fx.Node]]:
    """Return the linear layers of the same input, with or without bias, of one dtype."""
    groups: dict[Any, list[fx.Node]] = {}
    for node in nodes:
        if not is_call(node, F.linear):
            continue
        x, (weight, bias) = inputs(node)[0], _parameters(node)
        if _is_parameter(weight) and (bias is None or _is_parameter(bias)):
            value: Any = example(weight)
            key = (x, bias is None, value.dtype, value.device)
            groups.setdefault(key, []).append(node)
    return [group for group in groups.values() if _are_apart(group)]


def _parameters(linear: fx.Node) -> tuple[Any, Any]:
    return argument(linear, 1, "weight"), argument(linear, 2, "bias")


def _is_parameter(node: Any) -> bool:
    return isinstance(example(node), torch.nn.Parameter) and node.op == "placeholder"


def _are_apart(group: list[fx.Node]) -> bool:
    """Say whether there are several layers, each with parameters of its own."""
    parameters = [one for node in group for one in _parameters(node) if one is not None]
    return len(group) >= _SEVERAL and len(set(parameters)) == len(parameters)


def _join(editor: GraphEditor, group: list[fx.Node]) -> None:
    weights, biases = zip(*(_parameters(node) for node in group), strict=True)
    sizes = [example(weight).shape[0] for weight in weights]  # type: ignore[union-attr]  # all have fake values
    with editor.before(group[0]):
        weight = editor.call(join_rows, *weights)
        bias = editor.call(join_rows, *biases) if biases[0] is not None else None
        product = editor.call(F.linear, inputs(group[0])[0], weight, bias)
        pieces = editor.call(torch.split, product, sizes, -1)
        parts = [editor.call(operator.getitem, pieces, index) for index in range(len(group))]
    editor.replace(group, dict(zip(group, parts, strict=True)))
    try:
        editor.refresh(pieces)
    except (RuntimeError, ValueError):
        # A view that only packed rows allow: give each layer's users what they had.
        for part in parts:
            _pack(editor, part)
        editor.refresh(pieces)


def _pack(editor: GraphEditor, part: fx.Node) -> None:
    with editor.graph.inserting_after(part):
        packed = editor.method("contiguous", part)
    part.replace_all_uses_with(packed, delete_user_cb=lambda user: user is not packed)
