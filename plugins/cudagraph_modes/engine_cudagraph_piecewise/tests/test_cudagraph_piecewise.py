"""Graph mode `piecewise`: which shapes, and which batches are padded to them."""

from __future__ import annotations

import pytest

from engine.batch import BatchShape
from engine.facts import DeviceFacts, Facts, GraphSupport, ModelFacts
from engine.testing import GraphStrategyConformance
from engine.testing.graph_modes import GraphBench
from engine_cudagraph_piecewise.strategy import Piecewise


class TestContract(GraphStrategyConformance):
    strategy = "piecewise"


@pytest.fixture(scope="module")
def bench() -> GraphBench:
    return GraphBench("piecewise", sizes=(1, 2, 4, 8, 16), max_num_seqs=8)


def test_each_size_is_recorded_once_whatever_the_kind_of_batch(bench: GraphBench) -> None:
    assert bench.recorded("piecewise") == [16, 8, 4, 2, 1]
    assert {shape.uniform_decode for shape in bench.strategy.plan(bench.job)} == {False}


@pytest.mark.parametrize(
    ("shape", "kind", "padded"),
    [
        (BatchShape.decode(3), "piecewise", 4),
        (BatchShape.decode(8), "piecewise", 8),
        (BatchShape(3, 2, 2, uniform_decode=False), "piecewise", 4),
        (BatchShape(9, 3, 5, uniform_decode=False), "piecewise", 16),
        (BatchShape(17, 3, 9, uniform_decode=False), "eager", 17),
    ],
)
def test_dispatch(bench: GraphBench, shape: BatchShape, kind: str, padded: int) -> None:
    decision = bench.strategy.dispatch(shape)
    assert (decision.kind, decision.padded.num_tokens) == (kind, padded)
    assert decision.padded.num_reqs >= shape.num_reqs
    assert bool(decision.reason) == (kind == "eager")


def test_a_pass_is_a_graph_before_between_and_after_the_break_ops() -> None:
    bench = GraphBench("piecewise", sizes=(2,))
    device, calls = bench.device, []
    end = device.end

    def counted() -> object:
        graph = end()
        calls.append(graph is not None)
        return graph

    device.end = counted  # type: ignore[method-assign, assignment]  # counts the segments
    bench.strategy.prepare(bench.job)
    assert calls == [True] * (len(bench.model.attention_specs) + 1)


@pytest.mark.parametrize("support", list(GraphSupport))
def test_any_attention_will_do(support: GraphSupport) -> None:
    device = DeviceFacts("cpu", graph_device="simulated")
    facts = Facts(device, ModelFacts("Tiny", "float32", 128), graph_support=support)
    assert Piecewise.refuse(facts) is None


def test_a_device_without_graphs_is_refused_with_a_remedy() -> None:
    refusal = Piecewise.refuse(Facts(DeviceFacts("cpu"), ModelFacts("Tiny", "float32", 128)))
    assert refusal is not None
    assert "can't record graphs" in refusal.reason
    assert "--graph-device simulated" in refusal.remedy
