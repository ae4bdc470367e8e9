"""Reads and changes a graph so that shapes stay known and nobody notices.

A part of a graph may be replaced when its inner values are used by nothing else, and when nothing
writes into the memory of any of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

_IN_PLACE = frozenset(
    {
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
        operator.ifloordiv,
        operator.ipow,
        operator.iand,
        operator.ior,
        operator.ixor,
        operator.setitem,
    }
)


def example(node: Any) -> torch.Tensor | None:
    """Return the fake tensor that a node gives, or None where it gives none."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_call(node: Any, *targets: Callable[..., Any] | str) -> bool:
    """Say whether a node calls one of these functions, operators, or methods (by name)."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return False
    packet: Any = getattr(node.target, "overloadpacket", node.target)
    return node.target in targets or packet in targets


def is_linear(node: Any) -> bool:
    """Say whether a node calls `torch.nn.functional.linear`, by either name that a trace has."""
    return is_call(node, F.linear, torch._C._nn.linear)  # noqa: SLF001 - what F.linear is in a trace


def inputs(node: fx.Node) -> tuple[Any, ...]:
    """Return what a call gets by position."""
    return node.args


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a call, given by position or by name."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


class GraphEditor:
    """Edits one graph for one pass.

    Args:
        graph: as a pass gets it: nodes have fake values in `meta["example_value"]`.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph.graph
        self._written = {
            place
            for node in self.graph.nodes
            for target in _written(node)
            if (place := _memory(target)) is not None
        }

    def closed(
        self,
        nodes: Iterable[fx.Node],
        results: Iterable[fx.Node],
        users: Iterable[fx.Node] = (),
    ) -> bool:
        """Say whether a part can be replaced.

        Args:
            nodes: all of the part.
            results: those of them that stay visible.
            users: further nodes that may use any of the part, because they go with it.

        Returns:
            Whether nothing outside uses another node of the part, and nothing anywhere writes
            into the memory of any of them.
        """
        inside = set(nodes)
        hidden = inside - set(results)
        if any(_memory(node) in self._written for node in inside if example(node) is not None):
            return False
        allowed = inside | set(users)
        return all(user in allowed for node in hidden for user in node.users)

    @contextmanager
    def before(self, node: fx.Node) -> Iterator[None]:
        """Put what `call` and `method` make before a node."""
        with self.graph.inserting_before(node):
            yield

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call of a function or operator, with its fake value."""
        node = self.graph.call_function(function, args, kwargs)
        _infer(node)
        return node

    def method(self, name: str, *args: Any) -> fx.Node:
        """Add a call of a tensor's method, with its fake value."""
        node = self.graph.call_method(name, args)
        _infer(node)
        return node

    def replace(self, nodes: Iterable[fx.Node], by: Mapping[fx.Node, fx.Node]) -> None:
        """Use other nodes instead of the results of a part, and take it out of the graph."""
        for old, new in by.items():
            old.replace_all_uses_with(new)
        left = set(nodes) | set(by)
        for node in reversed(self.graph.nodes):
            if node in left and not node.users:
                self.graph.erase_node(node)

    def refresh(self, start: fx.Node) -> None:
        """Work out again the fake values of what comes of a node; strides may have changed.

        Raises:
            RuntimeError, ValueError: an operator can't take what it is given now.
        """
        stale = {start}
        for node in self.graph.nodes:
            if node.op in ("call_function", "call_method") and stale & set(node.all_input_nodes):
                _infer(node)
                stale.add(node)


def _infer(node: fx.Node) -> None:
    args, kwargs = fx.node.map_arg(
        (node.args, node.kwargs), lambda used: used.meta.get("example_value")
    )
    tensors = [value for used in node.all_input_nodes if (value := example(used)) is not None]
    call: Any = node.target
    if isinstance(call, str):
        call, args = getattr(args[0], call), args[1:]
    with torch.inference_mode(mode=False), torch.no_grad():
        fake = next((tensor for tensor in tensors if isinstance(tensor, FakeTensor)), None)
        if fake is None:
            node.meta["example_value"] = call(*args, **kwargs)
            return
        with fake.fake_mode:
            try:
                node.meta["example_value"] = call(*args, **kwargs)
            except RuntimeError as error:
                if "symbolic sizes" not in str(error):
                    raise
                # torch 2.11 asks for plain numbers where it takes a product apart itself; in
                # Python it doesn't.
                with enable_python_dispatcher():
                    node.meta["example_value"] = call(*args, **kwargs)


def _memory(node: Any) -> int | None:
    """Identify the memory behind a node's value; views share it."""
    value = example(node)
    return None if value is None else int(value.untyped_storage()._cdata)  # noqa: SLF001 - torch names storages in no other way


def _written(node: fx.Node) -> Iterable[Any]:
    """Return the arguments that a call writes into, as far as its name or schema tells."""
    target = node.target
    if "out" in node.kwargs:
        yield node.kwargs["out"]
    if not node.args or node.op not in ("call_function", "call_method"):
        return
    if isinstance(target, OpOverload | OpOverloadPacket):
        overload = (
            getattr(target, target.overloads()[0]) if hasattr(target, "overloads") else target
        )
        for argument_info, value in zip(overload._schema.arguments, node.args, strict=False):  # noqa: SLF001 - no public way
            if argument_info.alias_info is not None and argument_info.alias_info.is_write:
                yield value
        return
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or target in _IN_PLACE or node.kwargs.get("inplace"):
        yield node.args[0]
