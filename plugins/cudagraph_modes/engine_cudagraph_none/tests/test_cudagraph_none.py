"""Graph mode `none`: every batch as it is."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from engine.batch import BatchShape
from engine.events import Event, EventBus
from engine.facts import DeviceFacts, Facts, GraphSupport, ModelFacts
from engine.strategies import CompiledModel, CompileReport, GraphJob, GraphStrategy, ModelInputs
from engine.testing import GraphStrategyConformance
from engine_cudagraph_none.strategy import NoGraphs


class TestContract(GraphStrategyConformance):
    strategy = "none"


def random_shape() -> BatchShape:
    num_reqs = random.randrange(1, 50)
    if random.random() < 0.5:
        return BatchShape.decode(num_reqs)
    longest = random.randrange(1, 100)
    return BatchShape(longest + num_reqs - 1, num_reqs, longest, uniform_decode=False)


class Model:
    """Remembers the inputs of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.calls.append((input_ids, positions))
        return torch.stack([input_ids, positions], dim=1).float()


def no_strategy(name: str) -> GraphStrategy:
    raise AssertionError(f"asked for {name}")


def prepared(model: Model, events: EventBus) -> NoGraphs:
    def dummy_batch(shape: BatchShape) -> Any:
        zeros = torch.zeros(shape.num_tokens, dtype=torch.int64)
        return nullcontext(ModelInputs(zeros, zeros))

    job = GraphJob(
        compiled=CompiledModel(model, CompileReport()),
        device=None,
        sizes=(1, 2, 4),
        max_num_seqs=8,
        graph_support=GraphSupport.NEVER,
        memory_budget=None,
        lazy=False,
        abort_on_failure=True,
        debug=False,
        events=events,
        dummy_batch=dummy_batch,
        make=no_strategy,
    )
    strategy = NoGraphs()
    assert strategy.plan(job) == ()
    strategy.prepare(job)
    return strategy


def test_preparing_runs_nothing_and_says_nothing() -> None:
    model, events = Model(), EventBus()
    seen: list[Event] = []
    events.subscribe(seen.append)
    prepared(model, events)
    assert model.calls == []
    assert seen == []


def test_no_batch_is_padded_and_the_reason_is_given() -> None:
    strategy = prepared(Model(), EventBus())
    for _ in range(50):
        shape = random_shape()
        decision = strategy.dispatch(shape)
        assert decision.padded == shape
        assert decision.kind == "eager"
        assert decision.reason
        assert decision == strategy.dispatch(shape)


def test_a_step_is_one_call_on_the_very_inputs() -> None:
    model = Model()
    strategy = prepared(model, EventBus())
    for count in (1, 5, 3):
        inputs = ModelInputs(torch.randint(0, 9, (count,)), torch.arange(count))
        shape = BatchShape(count, 1, count, uniform_decode=False)
        hidden = strategy.run(strategy.dispatch(shape), inputs)
        ids, positions = model.calls.pop()
        assert ids is inputs.input_ids
        assert positions is inputs.positions
        assert torch.equal(hidden, model(ids, positions))
        model.calls.clear()


@pytest.mark.parametrize("graph_device", [None, "cuda"])
@pytest.mark.parametrize("support", list(GraphSupport))
@pytest.mark.parametrize("capturable", [True, False])
def test_it_is_never_refused(
    graph_device: str | None, support: GraphSupport, capturable: bool
) -> None:
    facts = Facts(
        DeviceFacts(random.choice(["cpu", "cuda"]), graph_device=graph_device),
        ModelFacts("Tiny", "float32", 128),
        graph_support=support,
        capturable=capturable,
    )
    assert NoGraphs.refuse(facts) is None
