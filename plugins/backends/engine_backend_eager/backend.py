"""The backend that compiles nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from engine.strategies import Backend


class EagerBackend(Backend):
    """Runs the traced graph through its own forward: tells a tracing fault from a compiler's."""

    NAME = "eager"
    SUMMARY = "run the traced graph operator by operator; for debugging and as the reference"

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Return the graph's own forward; it serves every size."""
        del example_inputs, dynamic
        return graph.forward
