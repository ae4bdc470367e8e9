"""The memory of graphs is estimated from a few of them, before the rest is recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.events import GraphCaptured
from engine.runtime.graph_memory import estimate_graph_memory, trial_sizes
from engine.runtime.simulated_graphs import SimulatedGraphDevice
from engine.testing.graph_modes import GraphBench, strategy_named

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
RECORDING = ["full", "full_and_piecewise", "full_decode_only", "piecewise"]


@pytest.mark.parametrize("name", RECORDING)
def test_the_estimate_covers_what_is_taken_and_not_much_more(name: str) -> None:
    bench = GraphBench(name, sizes=SIZES)
    really = bench.device.memory()
    device = SimulatedGraphDevice()
    compiled = replace(bench.job.compiled, call=device.adopt(bench.model, compiled=False))
    job = replace(bench.job, device=device, compiled=compiled)
    seen = len(bench.events)
    expected = estimate_graph_memory(strategy_named(name), job, device.memory)
    assert really <= expected <= 1.5 * really
    assert len(bench.events) == seen, "a trial isn't reported"


def test_each_graph_besides_costs_what_the_tried_ones_cost() -> None:
    bench = GraphBench("piecewise", sizes=SIZES)
    per_graph = 1000
    trial = SimulatedGraphDevice()
    compiled = replace(bench.job.compiled, call=trial.adopt(bench.model, compiled=False))
    taken = [0]

    def used() -> int:
        taken[0] += per_graph
        return taken[0]

    job = replace(bench.job, device=trial, compiled=compiled)
    assert trial_sizes(job) == (5, 6, 12, 16)
    expected = estimate_graph_memory(strategy_named("piecewise"), job, used)
    # Four were tried; a reading before and after them makes one more.
    assert expected == per_graph * (len(SIZES) + 1)


@pytest.mark.parametrize("name", RECORDING)
def test_what_is_reserved_for_lazy_recording_covers_any_order(name: str) -> None:
    bench = GraphBench(name, sizes=SIZES, lazy=True)
    device = SimulatedGraphDevice()
    compiled = replace(bench.job.compiled, call=device.adopt(bench.model, compiled=False))
    job = replace(bench.job, device=device, compiled=compiled)
    reserved = estimate_graph_memory(strategy_named(name), job, device.memory)
    alone = (GraphBench(name, sizes=(size,)).device.memory() for size in SIZES)
    assert sum(alone) <= reserved


def test_nothing_recorded_takes_nothing() -> None:
    bench = GraphBench("full", unknown_ops=("strange::op",))
    assert not [event for event in bench.events if isinstance(event, GraphCaptured)]
    used = estimate_graph_memory(strategy_named("full"), bench.job, bench.device.memory)
    assert used == 0
