"""Rotation inside the attention operator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from engine.patterns import GraphEditor, Rotary, example, inputs, is_call, is_heads, match_rotary
from engine.plugin import Numerics
from engine.strategies import Pass

_ATTENTION = torch.ops.engine.attention
_ROTATING = torch.ops.engine.rotating_attention


@dataclass(frozen=True)
class _Rotated:
    """Queries and keys as attention gets them, and the rotations they come from."""

    query: Rotary
    key: Rotary
    nodes: frozenset[fx.Node]
    """All of the rotations, and the views of them up to the tensors that attention gets."""
    heads: int = 0
    """How many of the heads are queries, where they lie side by side with keys."""

    @property
    def joined(self) -> bool:
        """Whether one rotation is of queries and keys side by side."""
        return self.query is self.key


class RopeKvWrite(Pass):
    """Puts `engine::rotating_attention` in the place of rotation and attention.

    Where a key is written is known to the step alone, so the write stays inside the break
    operator, and the rotation joins it there. An attention implementation that declares
    `ROTATES` does both in one kernel; before any other, queries and keys are rotated by
    `engine::qk_norm_rope`.
    """

    NAME = "rope_kv_write"
    SUMMARY = "rotate queries and keys inside attention, where keys are written to the cache"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    ON_BY_DEFAULT = frozenset({"cuda"})
    BEFORE = ("qk_norm_rope",)

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each attention whose queries and keys are rotated right before."""
        editor, fired = GraphEditor(graph), 0
        for node in list(graph.graph.nodes):
            if is_call(node, _ATTENTION) and not node.kwargs:
                fired += _fuse(editor, node)
        return fired


def _fuse(editor: GraphEditor, attention: fx.Node) -> bool:
    query, key, value, out, layer = inputs(attention)
    # Whatever else looks at rotated queries is no concern of attention.
    if not is_call(out, torch.empty_like) or inputs(out) != (query,) or out.kwargs:
        return False
    found = _match(editor, query, key, (attention, out))
    if found is None:
        return False
    first, second = found.query, found.key
    with editor.before(attention):
        plain = _unrotated(editor, found)
        fresh = editor.call(torch.empty_like, plain[0])
        editor.call(
            _ROTATING,
            *plain,
            value,
            first.query_weight,
            second.key_weight if found.joined else second.query_weight,
            first.eps or second.eps,
            *first.flat_tables(editor),
            first.signed,
            fresh,
            layer,
        )
    editor.graph.erase_node(attention)
    editor.replace(found.nodes | {out}, {out: fresh})
    return True


def _match(
    editor: GraphEditor, query: fx.Node, key: fx.Node, users: tuple[fx.Node, ...]
) -> _Rotated | None:
    """Return where queries and keys come from, if it is from rotations that nobody else sees."""

    def is_rotation(node: Any) -> Rotary | None:
        return match_rotary(node, lambda _: True) if isinstance(node, fx.Node) else None

    source = inputs(query)[0] if is_call(query, operator.getitem) else None
    both = is_rotation(source)
    if both is not None and both.tokens_first:
        value = example(query)
        heads = 0 if value is None else value.shape[1]
        bounds = ((query, (None, heads)), (key, (heads, None)))
        if not all(is_heads(node, both.result, bound) for node, bound in bounds):
            return None
        # With norms the match knows where the keys begin; it must be where attention thinks.
        if both.query_weight is not None and both.heads != heads:
            return None
        found = _Rotated(both, both, both.nodes | {query, key}, heads)
    else:
        one, other = (_behind_views(node, is_rotation) for node in (query, key))
        if one is None or other is None or not _alike(one[0], other[0]):
            return None
        found = _Rotated(one[0], other[0], one[0].nodes | other[0].nodes | one[1] | other[1])
    read = found.query.read | found.key.read
    return found if editor.closed(found.nodes | read, read, users) else None


def _alike(query: Rotary, key: Rotary) -> bool:
    """Say whether two rotations have the same tables and no different norms."""
    same = (query.cos, query.sin, query.signed) == (key.cos, key.sin, key.signed)
    eps = {one.eps for one in (query, key) if one.query_weight is not None}
    return same and len(eps) <= 1 and query.key_weight is None and key.key_weight is None


def _behind_views(
    node: fx.Node, is_rotation: Callable[[Any], Rotary | None]
) -> tuple[Rotary, frozenset[fx.Node]] | None:
    """Walk back over the views that make [T, N, D] of a rotated [1, N, T, D]."""
    views: list[fx.Node] = []
    if is_call(node, "contiguous"):
        views.append(node)
        node = inputs(node)[0]
    if is_call(node, "transpose") and tuple(inputs(node)[1:]) in ((0, 1), (1, 0)):
        views.append(node)
        node = inputs(node)[0]
        if is_call(node, operator.getitem) and inputs(node)[1] == 0:
            views.append(node)
            found = is_rotation(inputs(node)[0])
            if found is not None and not found.tokens_first:
                return found, frozenset(views)
        return None
    found = is_rotation(node)
    return (found, frozenset(views)) if found is not None and found.tokens_first else None


def _unrotated(editor: GraphEditor, found: _Rotated) -> tuple[fx.Node, fx.Node]:
    """Add views of queries and keys as they are before norm and rotation."""
    if not found.joined:
        return found.query.flat_x(editor), found.key.flat_x(editor)
    x = found.query.x
    bounds = (slice(None, found.heads), slice(found.heads, None))
    query, key = (editor.call(operator.getitem, x, (slice(None), bound)) for bound in bounds)
    return query, key
