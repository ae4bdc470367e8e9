"""Recording: what fails costs one size, what is met first may be recorded then, budgets hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.errors import EngineError
from engine.events import Notice
from engine.testing.compiling import ToyDecoder
from engine.testing.conformance.toys import STRANGE, Fussy, Strange
from engine.testing.graph_modes import GraphBench, decode, prefilled, strategy_named

RECORDING = ["full", "full_and_piecewise", "full_decode_only", "piecewise"]


def bench_of(name: str, model: Fussy, **settings: Any) -> GraphBench:
    return GraphBench(name, model=model, device=model.device, **settings)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", RECORDING)
def test_abort_makes_a_failed_capture_an_error(name: str, lazy: bool) -> None:
    model = Fussy({4: ValueError("not four")})

    def start_and_run() -> None:
        bench = bench_of(name, model, sizes=(1, 4), lazy=lazy, abort_on_failure=True)
        assert lazy, "it should have failed"
        prefilled(bench, [5, 6, 7]).step(decode([0, 1, 2]))

    with pytest.raises(EngineError, match=r"recording 4 tokens failed.*not four"):
        start_and_run()


@pytest.mark.parametrize("name", RECORDING)
def test_lazy_records_what_is_first_met_and_replays_it_later(name: str) -> None:
    bench = prefilled(GraphBench(name, lazy=True, sizes=(1, 4)), [5, 6, 7])
    assert bench.captured == []
    first, second = bench.step(decode([0, 1, 2])), bench.step(decode([0, 1, 2]))
    assert [event.num_tokens for event in bench.captured] == [4]
    assert first.decision.reason == "first met: recorded while it runs"
    assert second.decision.reason == ""
    assert first.decision.kind == second.decision.kind
    assert first.decision.kind in bench.strategy.KINDS
    assert first.equal
    assert second.equal


def test_a_lazy_whole_graph_isnt_recorded_from_a_batch_of_another_kind() -> None:
    """A graph for any batch, recorded from decode, would hold attention's short way for decode."""
    bench = prefilled(GraphBench("full", lazy=True, sizes=(4,), max_num_seqs=3), [5, 6])
    decoded = bench.step(decode([0, 1]))
    assert decoded.decision.kind == "eager"
    assert "another kind" in decoded.decision.reason
    assert bench.step([(0, [1, 2]), (1, [3])]).decision.reason.startswith("first met")
    decoded = bench.step(decode([0, 1]))
    assert decoded.decision.kind == "full"
    assert decoded.equal


@pytest.mark.parametrize("name", RECORDING)
@pytest.mark.parametrize("abort", [False, True])
def test_a_memory_budget_ends_recording_and_is_no_failure(name: str, abort: bool) -> None:
    first = GraphBench(name, sizes=(1, 2, 4)).captured[0]
    bench = GraphBench(name, sizes=(1, 2, 4), memory_budget=first.num_bytes, abort_on_failure=abort)
    kept = [event for event in bench.captured if not event.dropped]
    assert [event.num_tokens for event in kept] == [4]
    assert all("graphs may take" in event.dropped for event in bench.captured[1:])
    assert prefilled(bench, [2, 3]).step(decode([0, 1])).equal


class Dynamic(ToyDecoder):
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(input_ids, positions)
        return hidden + (positions.nonzero().sum() * 0).to(hidden.dtype)


UNKNOWN: dict[str, Any] = {"unknown_ops": (STRANGE,)}


@pytest.mark.parametrize("name", ["full", "full_decode_only"])
def test_an_unknown_operator_is_never_in_a_whole_graph(name: str) -> None:
    bench = prefilled(GraphBench(name, model=Strange(layers=2), **UNKNOWN), [5, 3])
    assert bench.captured == []
    (notice,) = [event for event in bench.events if isinstance(event, Notice)]
    assert STRANGE in notice.message
    assert "declare_recordable" in notice.message
    result = bench.step(decode([0, 1]))
    assert result.equal
    assert result.decision.kind == "eager"
    with pytest.raises(EngineError, match=STRANGE):
        GraphBench(name, model=Strange(layers=2), abort_on_failure=True, **UNKNOWN)


def test_pieces_break_at_an_unknown_operator() -> None:
    bench = prefilled(GraphBench("piecewise", model=Strange(layers=2), **UNKNOWN), [5, 3])
    assert bench.recorded("piecewise") == [8, 4, 2, 1]
    for names in ([0, 1], [1], [0, 1]):
        result = bench.step(decode(names))
        assert result.equal
        assert result.decision.kind == "piecewise"


def test_pieces_dont_break_at_an_operator_whose_shape_depends_on_values() -> None:
    bench = GraphBench("piecewise", model=Dynamic(layers=2), unknown_ops=("aten::nonzero",))
    assert all("aten::nonzero" in event.dropped for event in bench.captured)
    assert len(bench.captured) == 4


def test_pieces_arent_recorded_where_an_unknown_operator_cant_be_seen() -> None:
    bench = GraphBench(
        "piecewise", model=Strange(layers=2), compiled=lambda model: model, **UNKNOWN
    )
    assert bench.captured == []
    assert prefilled(bench, [5, 3]).step(decode([0, 1])).decision.kind == "eager"


@pytest.mark.parametrize("name", [*RECORDING, "none"])
def test_what_was_never_prepared_can_be_closed(name: str) -> None:
    strategy_named(name).close()
