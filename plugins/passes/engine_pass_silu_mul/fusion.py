"""`silu(gate) * up` of one projection."""

from __future__ import annotations

from torch import fx

from engine.ops import silu_mul
from engine.patterns import GraphEditor, match_gated
from engine.plugin import Numerics
from engine.strategies import Pass


class SiluMul(Pass):
    """Puts `engine::silu_mul` in the place of a chunk, an activation and a product.

    A projection that is cut otherwise than in two equal halves, or whose halves are used
    elsewhere too, stays as it is.
    """

    NAME = "silu_mul"
    SUMMARY = "SiLU of the gate times the other half of a projection, in one operator"
    NUMERICS = Numerics.TOLERANCE
    STAGE = "graph"
    ON_BY_DEFAULT = frozenset({"cuda"})
    AFTER = ("horizontal_fusion",)

    def run(self, graph: fx.GraphModule) -> int:
        """Replace each activation."""
        editor, fired = GraphEditor(graph), 0
        for node in list(graph.graph.nodes):
            found = match_gated(node)
            if found is None or not editor.closed(found.nodes, [node]):
                continue
            with editor.before(node):
                new = editor.call(silu_mul.overload, found.source)
            editor.replace(found.nodes, {node: new})
            fired += 1
        return fired
