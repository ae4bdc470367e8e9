"""One trace: what it gives, what it refuses, what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.eval_frame import cached_backends
from torch.nn import functional as F

from engine.testing.compiling import ToyDecoder, run_step
from engine.tracing import forget, trace_model, with_own_code

CPU = torch.device("cpu")


def test_the_graph_takes_parameters_ids_positions_and_the_number_of_tokens() -> None:
    model = ToyDecoder(2)
    traced = trace_model(model, 64, CPU)
    bound = [value for value in traced.example_inputs if isinstance(value, torch.nn.Parameter)]
    assert {id(value) for value in bound} == {id(p) for p in model.parameters()}
    roles = {traced.ids, traced.positions, *traced.sizes}
    assert None not in roles
    assert len(bound) + len(roles) == len(traced.example_inputs)
    assert isinstance(traced.result.meta["example_value"].shape[0], torch.SymInt)


def test_a_bound_call_sees_weights_that_change_in_place() -> None:
    model = ToyDecoder(1)
    traced = trace_model(model, 64, CPU)
    call = traced.bind(traced.graph.forward)
    before = run_step(call, model, 3)
    with torch.inference_mode():
        model.embedding.weight.mul_(2)
    assert not torch.equal(run_step(call, model, 3), before)
    assert torch.equal(run_step(call, model, 3), run_step(model, model, 3))


def test_tracing_runs_nothing_of_the_model() -> None:
    class Counts(ToyDecoder):
        ran = 0

        def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
            raise AssertionError("never asked for")

    # Outside a forward context attention would fail if it ran.
    trace_model(Counts(1), 64, CPU)


def test_a_model_that_ignores_an_input_is_traced_without_it() -> None:
    class NoPositions(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.layers[0](self.embedding(input_ids))
            return hidden

    model = NoPositions(1)
    traced = trace_model(model, 64, CPU)
    assert traced.positions is None
    call = traced.bind(traced.graph.forward)
    assert torch.equal(run_step(call, model, 3), run_step(model, model, 3))


class Scaled(ToyDecoder):
    """Has constants that another model of the class has otherwise."""

    def __init__(self, scale: float, hidden: int) -> None:
        super().__init__(1, hidden)
        self.scale, self.times = scale, hidden // 8

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = super().forward(input_ids, positions) * self.scale
        return F.rms_norm(x * self.times, x.shape[-1:], None, self.scale)


def test_a_trace_knows_nothing_of_earlier_ones_with_other_constants() -> None:
    for scale, hidden in ((0.5, 16), (0.25, 32), (0.5, 16)):
        model = Scaled(scale, hidden)
        traced = trace_model(model, 64, CPU)
        constants = [arg for node in traced.graph.graph.nodes for arg in node.args]
        assert scale in [arg for arg in constants if isinstance(arg, float)]
        call = traced.bind(traced.graph.forward)
        assert torch.equal(run_step(call, model, 3), run_step(model, model, 3))


def test_dynamo_keeps_no_graph_of_ours() -> None:
    def kept() -> int:
        return sum(bool(getattr(backend, "kept", ())) for backend in cached_backends.values())

    before = kept()
    trace_model(ToyDecoder(1), 64, CPU)
    assert kept() == before


def test_functions_with_their_own_code_do_not_share_what_dynamo_caches() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    seen: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(graph)
        return graph.forward

    copies = [with_own_code(double, "copy") for _ in range(2)]
    for copy in (*copies, *copies):
        torch.compile(copy, backend=backend)(torch.ones(2))
    assert len(seen) == 2
    forget(copies[0])
    for copy in copies:
        torch.compile(copy, backend=backend)(torch.ones(2))
    assert len(seen) == 3
    forget(copies[1])
