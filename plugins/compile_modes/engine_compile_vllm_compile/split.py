"""Cuts a traced graph at its break ops.

Only tensors pass from piece to piece. What is not a tensor (a size, an arithmetic on sizes) is
worked out again where it is needed, and the results of an operator that gives several stay in its
piece, so that every piece takes and returns flat tensors and numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class Piece:
    """A part of a graph that runs at once.

    Attributes:
        graph: takes the inputs in order and returns a tuple of the outputs.
        inputs: nodes of the whole graph, one per placeholder.
        outputs: nodes of the whole graph that later pieces or the result need.
        is_break: it is one break op, and stays as it is.
    """

    graph: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    is_break: bool


def split_graph(graph: fx.GraphModule, is_break: Callable[[fx.Node], bool]) -> list[Piece]:
    """Cut a graph before and after every break op, in its own order.

    Args:
        graph: as traced; left unchanged.
        is_break: tells break ops.
    """
    groups = _assign(graph, is_break)
    where = {node: index for index, group in enumerate(groups) for node in group}
    builders = [_Builder(graph, where, index) for index in range(len(groups))]
    for builder, group in zip(builders, groups, strict=True):
        for node in group:
            builder.add(node)
    result = _nodes(graph.graph.output_node().args)
    needed = {node for builder in builders for node in builder.inputs} | set(result)
    pieces = []
    for builder, group in zip(builders, groups, strict=True):
        outputs = tuple(node for node in group if node in needed)
        pieces.append(builder.finish(outputs, is_break=is_break(group[0])))
    return pieces


def _assign(graph: fx.GraphModule, is_break: Callable[[fx.Node], bool]) -> list[list[fx.Node]]:
    """Return the nodes of each piece; sizes are left out, they are copied where needed."""
    groups: list[list[fx.Node]] = [[]]
    where: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or _is_size(node):
            continue
        if is_break(node):
            groups += [[node], []]
            where[node] = groups[-2]
            continue
        producer = node.args[0] if node.op == "call_function" and node.target is getitem else None
        group = where.get(producer, groups[-1]) if isinstance(producer, fx.Node) else groups[-1]
        if producer is not None and isinstance(_example(producer), torch.Tensor):
            group = groups[-1]
        group.append(node)
        where[node] = group
    return [group for group in groups if group]


def _example(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _is_size(node: fx.Node) -> bool:
    """Say whether a node's value is made of numbers only."""
    value = _example(node)
    if isinstance(value, torch.Size):
        return True
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def _nodes(args: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(args, found.append)
    return found


class _Builder:
    """Builds one piece by copying nodes of the whole graph."""

    def __init__(self, whole: fx.GraphModule, where: dict[fx.Node, int], index: int) -> None:
        self._whole, self._where, self._index = whole, where, index
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self.inputs: list[fx.Node] = []

    def add(self, node: fx.Node) -> fx.Node:
        """Copy a node and, before it, what it needs."""
        for argument in node.all_input_nodes:
            if argument not in self._copies:
                self._copies[argument] = self._fetch(argument)
        copy = self._graph.node_copy(node, self._copies.__getitem__)
        self._copies[node] = copy
        return copy

    def _fetch(self, node: fx.Node) -> fx.Node:
        if node.op == "get_attr" or (node.op != "placeholder" and _is_size(node)):
            return self.add(node)
        self.inputs.append(node)
        # Placeholders come first in a graph, whenever their need is found.
        last = self._graph.find_nodes(op="placeholder")[-1:]
        position = self._graph.inserting_after(last[0]) if last else self._graph.inserting_before()
        with position:
            copy = self._graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        return copy

    def finish(self, outputs: tuple[fx.Node, ...], *, is_break: bool) -> Piece:
        """Return the piece with these results."""
        self._graph.output(tuple(self._copies[node] for node in outputs))
        graph = fx.GraphModule(self._whole, self._graph)
        return Piece(graph, tuple(self.inputs), outputs, is_break)
