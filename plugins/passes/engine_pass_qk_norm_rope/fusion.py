"""Queries and keys on their way from the projection to attention."""

from __future__ import annotations

from torch import fx

from engine.ops import qk_norm_rope
from engine.patterns import GraphEditor, Rotary, match_rotary
from engine.plugin import Numerics
from engine.strategies import Pass


class QkNormRope(Pass):
    """Puts `engine::qk_norm_rope` in the place of rotations and the norms before them.

    Where a model keeps queries and keys side by side, one operator rotates both.
    """

    NAME = "qk_norm_rope"
    SUMMARY = "normalise (where the model does) and rotate queries and keys, in one operator"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    ON_BY_DEFAULT = frozenset({"cuda"})

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each rotation."""
        editor, fired = GraphEditor(graph), 0
        # From the end, so that a concatenation is seen before the sum that is a part of it.
        for node in reversed(list(graph.graph.nodes)):
            found = match_rotary(
                node, lambda one: editor.closed(one.nodes | one.read, {one.result} | one.read)
            )
            if found is not None:
                with editor.before(node):
                    new = _call(editor, found)
                editor.replace(found.nodes, {node: new})
                fired += 1
        return fired


def _call(editor: GraphEditor, found: Rotary) -> fx.Node:
    new = editor.call(
        qk_norm_rope.overload,
        found.flat_x(editor),
        found.query_weight,
        found.key_weight,
        found.heads,
        found.eps,
        *found.flat_tables(editor),
        found.signed,
    )
    if found.tokens_first:
        return new
    return editor.method("unsqueeze", editor.method("transpose", new, 0, 1), 0)
