"""Finds projections, with what follows them, and makes them operators for few tokens."""

from __future__ import annotations

import operator

import torch
from torch import fx

from engine.ops import silu_mul
from engine.patterns import GraphEditor, argument, example, inputs, is_call, is_linear, match_gated
from engine.plugin import Numerics
from engine.strategies import Pass
from engine_pass_small_batch_linear.operators import gated_linear, linear

_DTYPES = (torch.bfloat16, torch.float16)


class SmallBatchLinear(Pass):
    """Puts an operator in the place of every projection on a GPU.

    The operator reads the weights as fast as they come when a step has few tokens, and calls the
    general product for more. It takes the addition to the residual stream along, or SiLU of the
    gate times the rest. Only for 16-bit weights: in float32 a
    general product is as close to the memory's speed.
    """

    NAME = "small_batch_linear"
    SUMMARY = "projections of few tokens at the speed of reading their weights (GPU)"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    AFTER = ("horizontal_fusion", "add_rms_norm", "silu_mul", "qk_norm_rope", "rope_kv_write")
    ON_BY_DEFAULT = frozenset({"cuda"})

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each projection, together with its gate or its residual."""
        editor = GraphEditor(graph)
        fired = sum(_fuse_gate(editor, node) for node in list(graph.graph.nodes))
        return fired + sum(_fuse(editor, node) for node in list(graph.graph.nodes))


def _fuse_gate(editor: GraphEditor, node: fx.Node) -> bool:
    """Replace a gated projection that ends in a node."""
    if is_call(node, silu_mul.overload):
        projection, nodes = inputs(node)[0], {node}
    elif (gated := match_gated(node)) is not None:
        projection, nodes = gated.source, set(gated.nodes)
    else:
        return False
    if not _is_projection(projection):
        return False
    nodes.add(projection)
    if not editor.closed(nodes, [node]):
        return False
    x, weight = inputs(projection)[:2]
    with editor.before(node):
        new = editor.call(gated_linear.overload, x, weight, argument(projection, 2, "bias"))
    editor.replace(nodes, {node: new})
    return True


def _fuse(editor: GraphEditor, node: fx.Node) -> bool:
    """Replace a projection, and the addition to it if nothing else uses it."""
    if not _is_projection(node):
        return False
    end, residual = _residual(node)
    if residual is not None and not editor.closed({node, end}, [end]):
        end, residual = node, None
    if not editor.closed([end], [end]):
        return False
    x, weight = inputs(node)[:2]
    with editor.before(end):
        new = editor.call(linear.overload, x, weight, argument(node, 2, "bias"), residual)
    editor.replace({node, end}, {end: new})
    return True


def _is_projection(node: fx.Node) -> bool:
    if not is_linear(node) or len(inputs(node)) < 2:
        return False
    x, weight = (example(part) for part in inputs(node)[:2])
    if x is None or weight is None or x.ndim != 2 or weight.ndim != 2:
        return False
    constant = inputs(node)[1].op in ("placeholder", "get_attr")
    return constant and x.device.type == "cuda" and x.dtype in _DTYPES and weight.is_contiguous()


def _residual(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """Return the addition to a projection and what is added, or the projection and None."""
    user = next(iter(node.users), node)
    if len(node.users) != 1 or not is_call(user, operator.add, torch.add, "add") or user.kwargs:
        return node, None
    terms = inputs(user)
    if len(terms) != 2 or terms[0] is terms[1]:
        return node, None
    other = terms[1] if terms[0] is node else terms[0]
    mine, its = example(node), example(other)
    if mine is None or its is None or its.dtype != mine.dtype or its.shape != mine.shape:
        return node, None
    return user, other
