"""Graph mode `full_and_piecewise`: two strategies, reached by name."""

from __future__ import annotations

import pytest

from engine.batch import BatchShape
from engine.strategies import GraphStrategy
from engine.testing import GraphStrategyConformance
from engine.testing.graph_modes import GraphBench, decode, prefilled, strategy_named


class TestContract(GraphStrategyConformance):
    strategy = "full_and_piecewise"


@pytest.fixture(scope="module")
def bench() -> GraphBench:
    return GraphBench("full_and_piecewise", sizes=(1, 2, 4, 8, 16), max_num_seqs=8)


def test_pieces_come_first_because_they_need_more_memory(bench: GraphBench) -> None:
    order = [(event.kind, event.num_tokens) for event in bench.captured]
    pieces = [("piecewise", size) for size in (16, 8, 4, 2, 1)]
    assert order == [*pieces, *(("full", size) for size in (8, 4, 2, 1))]
    planned = [shape.num_tokens for shape in bench.strategy.plan(bench.job)]
    assert planned == [size for _, size in order]


@pytest.mark.parametrize(
    ("shape", "kind", "padded"),
    [
        (BatchShape.decode(3), "full", 4),
        (BatchShape.decode(8), "full", 8),
        (BatchShape(3, 2, 2, uniform_decode=False), "piecewise", 4),
        (BatchShape(9, 3, 5, uniform_decode=False), "piecewise", 16),
        (BatchShape(17, 3, 9, uniform_decode=False), "eager", 17),
    ],
)
def test_dispatch(bench: GraphBench, shape: BatchShape, kind: str, padded: int) -> None:
    decision = bench.strategy.dispatch(shape)
    assert (decision.kind, decision.padded.num_tokens) == (kind, padded)
    assert bool(decision.reason) == (kind == "eager")


def test_it_composes_by_name_whatever_is_installed_under_it() -> None:
    asked = []

    def make(name: str) -> GraphStrategy:
        asked.append(name)
        # Somebody's own strategy for decode stands in for ours.
        return strategy_named("piecewise" if name == "full_decode_only" else name)

    bench = prefilled(GraphBench("full_and_piecewise", sizes=(1, 2), make=make), [5, 6])
    assert set(asked) == {"full_decode_only", "piecewise"}
    result = bench.step(decode([0, 1]))
    assert result.equal
    assert result.decision.kind == "piecewise"


def test_lazy_decode_is_recorded_by_the_decode_strategy() -> None:
    bench = prefilled(GraphBench("full_and_piecewise", lazy=True, sizes=(2,)), [5, 6])
    assert bench.step(decode([0, 1])).equal
    assert [event.kind for event in bench.captured] == ["full"]
    assert bench.step([(0, [3]), ("new", [4])]).equal
    assert [event.kind for event in bench.captured] == ["full", "piecewise"]
