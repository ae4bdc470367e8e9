"""Graph mode `full`: which shapes, and which batches are padded to them."""

from __future__ import annotations

import pytest

from engine.batch import BatchShape
from engine.facts import DeviceFacts, Facts, GraphSupport, ModelFacts
from engine.testing import GraphStrategyConformance
from engine.testing.graph_modes import GraphBench
from engine.testing.recordable_attention import RecordableAttention
from engine_cudagraph_full.strategy import Full


class TestContract(GraphStrategyConformance):
    strategy = "full"


SIZES = (1, 2, 4, 8, 16)


class DecodeOnly(RecordableAttention):
    """Attention that may be recorded for decode only."""

    GRAPH_SUPPORT = GraphSupport.UNIFORM_DECODE


@pytest.fixture(scope="module")
def bench() -> GraphBench:
    return GraphBench("full", sizes=SIZES, max_num_seqs=8)


def test_decode_and_mixed_shapes_are_recorded_largest_first(bench: GraphBench) -> None:
    assert bench.recorded("full") == [16, 8, 8, 4, 4, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("shape", "padded"),
    [
        (BatchShape.decode(3), BatchShape.decode(4)),
        (BatchShape.decode(8), BatchShape.decode(8)),
        (BatchShape(3, 2, 2, uniform_decode=False), BatchShape(4, 4, 4, uniform_decode=False)),
        (BatchShape(9, 3, 5, uniform_decode=False), BatchShape(16, 8, 16, uniform_decode=False)),
    ],
)
def test_dispatch(bench: GraphBench, shape: BatchShape, padded: BatchShape) -> None:
    decision = bench.strategy.dispatch(shape)
    assert decision.kind == "full"
    assert decision.padded == padded
    assert decision.reason == ""


def test_beyond_the_largest_size_nothing_is_padded(bench: GraphBench) -> None:
    shape = BatchShape(17, 3, 9, uniform_decode=False)
    decision = bench.strategy.dispatch(shape)
    assert (decision.kind, decision.padded) == ("eager", shape)
    assert decision.reason


def test_attention_that_may_be_recorded_for_decode_only() -> None:
    bench = GraphBench("full", sizes=SIZES, max_num_seqs=8, attention=DecodeOnly())
    assert bench.recorded("full") == [8, 4, 2, 1]
    assert bench.strategy.dispatch(BatchShape.decode(3)).padded == BatchShape.decode(4)
    mixed = BatchShape(3, 2, 2, uniform_decode=False)
    assert bench.strategy.dispatch(mixed).kind == "eager"


def test_a_pass_is_one_graph_whose_attention_reads_the_live_batch() -> None:
    bench = GraphBench("full", sizes=(8,))
    assert bench.step([("a", [1, 2, 3, 4])]).equal
    assert bench.step([("b", [5, 6])]).equal
    result = bench.step([("a", [7]), ("b", [8, 9]), ("c", [10, 11, 12])])
    assert result.equal
    assert result.decision.kind == "full"


def test_attention_that_never_may_be_recorded_is_refused() -> None:
    device = DeviceFacts("cpu", graph_device="simulated")
    facts = Facts(device, ModelFacts("Tiny", "float32", 128), chosen={"attention": "plain"})
    refusal = Full.refuse(facts)
    assert refusal is not None
    assert "plain can't be inside a recorded graph (never)" in refusal.reason
