"""One Dynamo trace of the model, freed of Dynamo: a graph and how to call it.

Public: any compile strategy that wants the whole graph once needs the same care: a token
dimension that stays symbolic, guards that are checked at trace time and then gone, and no trace
left in Dynamo's process-wide caches, where a second engine would find it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import mark_dynamic
from torch._dynamo.exc import TorchDynamoException
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.models import CausalLM
    from engine.strategies import ModelCall, ModelInputs

_IDS, _POSITIONS = "L['input_ids']", "L['positions']"


@dataclass(frozen=True)
class Traced:
    """What a trace gave.

    Attributes:
        graph: the model as one FX graph over torch operators; parameters are placeholders.
        example_inputs: one value per placeholder: the parameters themselves, the example ids and
            positions, and symbolic ints for the number of tokens.
        ids, positions: where the step's inputs stand among the placeholders.
        sizes: where the number of tokens stands among the placeholders.
    """

    graph: fx.GraphModule
    example_inputs: tuple[Any, ...]
    ids: int | None
    positions: int | None
    sizes: tuple[int, ...]

    def bind(self, call: Callable[..., Any]) -> ModelCall:
        """Make a model call of a callable that takes the graph's placeholders.

        Parameters are bound once, so that a step costs no look-up of them.
        """
        template = list(self.example_inputs)
        for index in (self.ids, self.positions, *self.sizes):
            if index is not None:
                template[index] = None
        ids, positions, sizes = self.ids, self.positions, self.sizes

        def run(input_ids: torch.Tensor, step_positions: torch.Tensor) -> torch.Tensor:
            args = template.copy()
            if ids is not None:
                args[ids] = input_ids
            if positions is not None:
                args[positions] = step_positions
            for index in sizes:
                args[index] = input_ids.shape[0]
            result = call(*args)
            hidden: torch.Tensor = result[0] if isinstance(result, tuple | list) else result
            return hidden

        return run


def trace_model(model: CausalLM, example: ModelInputs, max_num_tokens: int) -> Traced:
    """Trace the model once, with the number of tokens symbolic from 1 to `max_num_tokens`.

    Call it in a forward context, with an example of at least two tokens.

    Args:
        model: what to trace; left as it is.
        example: inputs of a dummy batch.
        max_num_tokens: upper end of the token dimension.

    Raises:
        ModelError: the model's Python depends on the batch; names the guard that a trace would
            have needed, or the code that can't be traced.
    """
    captured: list[tuple[fx.GraphModule, Sequence[Any]]] = []

    def capture(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        captured.append((graph, tuple(example_inputs)))
        return graph.forward

    # Fresh tensors: marking them dynamic leaves a mark on the tensor itself.
    ids, positions = example.input_ids.clone(), example.positions.clone()
    with _private_entry(model) as entry:
        for tensor in (ids, positions):
            mark_dynamic(tensor, 0, min=1, max=max(2, max_num_tokens))
        compiled = torch.compile(
            entry,
            fullgraph=True,
            backend=capture,
            options={"guard_filter_fn": lambda guards: [False] * len(guards)},
        )
        try:
            compiled(ids, positions)
        except (TorchDynamoException, ConstraintViolationError) as error:
            raise ModelError(_refusal(model, error)) from error
    graph, example_inputs = captured[0]
    return _describe(graph, example_inputs)


@contextmanager
def _private_entry(model: CausalLM) -> Iterator[Callable[..., torch.Tensor]]:
    """Yield a function with a code object of its own.

    Dynamo caches by code object. With the guards gone, two models of one class that shared it
    would run each other's graph.
    """

    def call(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return model(input_ids, positions)  # type: ignore[no-any-return]  # nn.Module's __call__

    code = call.__code__.replace(co_name="model_trace")
    entry = types.FunctionType(code, call.__globals__, "model_trace", None, call.__closure__)
    try:
        yield entry
    finally:
        reset_code(code)


def _describe(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Traced:
    ids = positions = None
    sizes = []
    placeholders = graph.graph.find_nodes(op="placeholder")
    for index, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        source = _source(node)
        if isinstance(value, torch.SymInt | int):
            sizes.append(index)
        elif source == _IDS:
            ids = index
        elif source == _POSITIONS:
            positions = index
    return Traced(graph, tuple(example_inputs), ids, positions, tuple(sizes))


def _source(node: fx.Node) -> str:
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _refusal(model: CausalLM, error: Exception) -> str:
    text = str(error).strip()
    reason = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return (
        f"{type(model).__name__} can't be traced once for all batches: {reason[:800]} "
        "Use a compile mode that keeps guards or compiles nothing for this model."
    )
