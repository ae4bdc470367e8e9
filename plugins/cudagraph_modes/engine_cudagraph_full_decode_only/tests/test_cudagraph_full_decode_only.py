"""Graph mode `full_decode_only`: decode is recorded, nothing else."""

from __future__ import annotations

import pytest

from engine.batch import BatchShape
from engine.strategies import GraphStrategy
from engine.testing import GraphStrategyConformance
from engine.testing.graph_modes import GraphBench, strategy_named


class TestContract(GraphStrategyConformance):
    strategy = "full_decode_only"


@pytest.fixture(scope="module")
def bench() -> GraphBench:
    return GraphBench("full_decode_only", sizes=(1, 2, 4, 8, 16), max_num_seqs=8)


def test_sizes_that_decode_can_have_are_recorded(bench: GraphBench) -> None:
    assert bench.recorded("full") == [8, 4, 2, 1]
    assert all(shape.uniform_decode for shape in bench.strategy.plan(bench.job))


@pytest.mark.parametrize(
    ("shape", "kind", "padded"),
    [
        (BatchShape.decode(3), "full", 4),
        (BatchShape.decode(8), "full", 8),
        (BatchShape(3, 2, 2, uniform_decode=False), "eager", 3),
        (BatchShape(9, 3, 5, uniform_decode=False), "eager", 9),
    ],
)
def test_dispatch(bench: GraphBench, shape: BatchShape, kind: str, padded: int) -> None:
    decision = bench.strategy.dispatch(shape)
    assert (decision.kind, decision.padded.num_tokens) == (kind, padded)
    assert (decision.reason == "not a decode step") == (kind == "eager")


def test_it_asks_for_whole_graphs_by_name() -> None:
    asked = []

    def make(name: str) -> GraphStrategy:
        asked.append(name)
        return strategy_named(name)

    GraphBench("full_decode_only", sizes=(1,), make=make)
    assert set(asked) == {"full"}
