"""A residual that is added, and the norm of the sum."""

from __future__ import annotations

import operator

import torch
from torch import fx

from engine.ops import add_rms_norm
from engine.patterns import GraphEditor, RmsNorm, example, inputs, is_call, match_rms_norm
from engine.plugin import Numerics
from engine.strategies import Pass

_PAIR = 2


class AddRmsNorm(Pass):
    """Puts `engine::add_rms_norm` in the place of an addition and the norm that follows it.

    The sum is a result too, because the next residual connection begins there.
    """

    NAME = "add_rms_norm"
    SUMMARY = "add the residual and normalise the sum, in one operator"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    ON_BY_DEFAULT = frozenset({"cuda"})

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each addition that is normalised."""
        editor, fired = GraphEditor(graph), 0
        for node in list(graph.graph.nodes):
            norm = match_rms_norm(node)
            if norm is None or not _is_sum(norm):
                continue
            nodes = norm.nodes | {norm.x}
            if not editor.closed(nodes, [node, norm.x]):
                continue
            with editor.before(norm.x):
                left, right = inputs(norm.x)
                both = editor.call(add_rms_norm.overload, right, left, norm.weight, norm.eps)
                normed = editor.call(operator.getitem, both, 0)
                total = editor.call(operator.getitem, both, 1)
            editor.replace(nodes, {node: normed, norm.x: total})
            fired += 1
        return fired


def _is_sum(norm: RmsNorm) -> bool:
    """Say whether what is normalised is the sum of two tensors just like it."""
    total = norm.x
    if not is_call(total, operator.add, torch.add, "add") or total.kwargs:
        return False
    if len(inputs(total)) != _PAIR:
        return False
    value, parts = example(total), [example(part) for part in inputs(total)]
    return value is not None and all(
        part is not None
        and part.dtype == value.dtype
        and part.device == value.device
        and _sizes(part) == _sizes(value)
        for part in parts
    )


def _sizes(value: torch.Tensor) -> list[str]:
    """Return sizes in a form that can be compared without a guard."""
    return [str(size) for size in value.shape]
