"""One Python function that runs the pieces of a model in order, written for them.

A step of a 30-layer model calls 61 pieces, so the way from one to the next must cost next to
nothing: values are local variables, parameters are globals of the function, and a value is
deleted right after its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from engine.strategies import ModelCall
    from engine_compile_vllm_compile.split import Piece


class Stitcher:
    """Writes the function once; makes it again for each set of compiled pieces.

    Args:
        pieces: in the order in which they run.
        inputs: what stands for the step's inputs: a placeholder of the whole graph and the
            expression over `input_ids` and `positions` that it becomes.
        constants: the placeholders that stay the same (parameters, buffers) with their values.
        result: the node whose value the function returns.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        inputs: Mapping[fx.Node, str],
        constants: Mapping[fx.Node, Any],
        result: fx.Node,
    ) -> None:
        self._pieces = pieces
        self._names: dict[fx.Node, str] = {}
        self._globals: dict[str, Any] = {}
        for number, (node, value) in enumerate(constants.items()):
            self._names[node] = f"constant_{number}"
            self._globals[f"constant_{number}"] = value
        self.source = "\n".join(self._lines(inputs, result)) + "\n"
        self._code = compile(self.source, "<stitched pieces>", "exec")

    def _lines(self, inputs: Mapping[fx.Node, str], result: fx.Node) -> list[str]:
        lines = ["def step(input_ids, positions):"]
        for node, expression in inputs.items():
            self._names[node] = self._local(node)
            lines.append(f"    {self._names[node]} = {expression}")
        last_use = {
            node: index for index, piece in enumerate(self._pieces) for node in piece.inputs
        }
        for index, piece in enumerate(self._pieces):
            arguments = ", ".join(self._names[node] for node in piece.inputs)
            for node in piece.outputs:
                self._names[node] = self._local(node)
            targets = "".join(f"{self._names[node]}, " for node in piece.outputs)
            assignment = f"{targets}= " if targets else ""
            lines.append(f"    {assignment}piece_{index}({arguments})")
            dead = [
                self._names[node]
                for node in dict.fromkeys((*piece.inputs, *piece.outputs))
                if last_use.get(node, index) == index
                and node is not result
                and self._names[node] not in self._globals
            ]
            if dead:
                lines.append(f"    del {', '.join(dead)}")
        return [*lines, f"    return {self._names[result]}"]

    def _local(self, node: fx.Node) -> str:
        return f"{node.name}_"

    def stitch(self, callables: Sequence[Callable[..., Any]]) -> ModelCall:
        """Return the function over these callables, one per piece."""
        namespace = dict(self._globals)
        for index, call in enumerate(callables):
            namespace[f"piece_{index}"] = call
        exec(self._code, namespace)  # noqa: S102 - our own source, from the structure of a graph
        step: ModelCall = namespace["step"]
        return step
