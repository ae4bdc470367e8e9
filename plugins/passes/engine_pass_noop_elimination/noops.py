"""Views, casts and copies that change nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from engine.strategies import Pass

_METHODS = frozenset(
    {
        "bfloat16",
        "contiguous",
        "detach",
        "expand",
        "expand_as",
        "flatten",
        "float",
        "half",
        "reshape",
        "reshape_as",
        "to",
        "type",
        "type_as",
        "unflatten",
        "view",
        "view_as",
    }
)
_FUNCTIONS = frozenset({torch.reshape, torch.flatten, torch.detach, F.dropout})
"""Each returns its first argument, or an alias of it, when size, layout, dtype and device are
what they were; so nothing that writes to one of the two can tell them apart."""


class NoopElimination(Pass):
    """Removes what inductor would remove too, where no compiler does it, and before other passes.

    Other passes match fewer patterns when a graph has nothing in it that does nothing.
    """

    NAME = "noop_elimination"
    SUMMARY = "remove reshapes, casts and copies that change nothing; helps other passes to match"
    STAGE = "graph"

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each no-op by its input."""
        fired = 0
        for node in list(graph.graph.nodes):
            if _is_candidate(node) and _same(node.meta.get("example_value"), _input(node)):
                node.replace_all_uses_with(node.args[0])
                graph.graph.erase_node(node)
                fired += 1
        return fired


def _is_candidate(node: fx.Node) -> bool:
    if node.op == "call_method":
        wanted = node.target in _METHODS
    else:
        wanted = node.op == "call_function" and node.target in _FUNCTIONS
    if not wanted or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.target is F.dropout:
        # In training it is no no-op even where it changes no size.
        return node.kwargs.get("training", node.args[2:3] == (True,)) is False
    return node.kwargs.get("copy", True in node.args[1:]) is not True


def _input(node: fx.Node) -> Any:
    source = node.args[0]
    return source.meta.get("example_value") if isinstance(source, fx.Node) else None


def _same(result: Any, source: Any) -> bool:
    """Say whether two fake tensors can't be told apart, for every number of tokens."""
    if not isinstance(result, torch.Tensor) or not isinstance(source, torch.Tensor):
        return False
    return (
        result.dtype == source.dtype
        and result.device == source.device
        and _numbers(result) == _numbers(source)
    )


def _numbers(tensor: torch.Tensor) -> list[Any]:
    """Return sizes, strides and offset; symbolic ones as expressions, compared without a guard."""
    numbers = [*tensor.shape, *tensor.stride(), tensor.storage_offset()]
    return [n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers]
