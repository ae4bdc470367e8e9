"""Counters of steps move by exactly the steps that ran, and by no other."""

from __future__ import annotations

from typing import Any

import pytest

from engine.events import GraphCaptured, StepRan

UNCOVERED = "no recorded shape covers the batch"
# Three prompts of five tokens in one step, then seven steps in which three sequences decode.
PROMPTS = [[5, 6, 7, 8, 9], [15, 16, 17, 18, 19], [25, 26, 27, 28, 29]]
NEW = 8
STEPS = {
    "none": {"none|eager|15|graphs are off": 1, "none|eager|3|graphs are off": 7},
    "piecewise": {"piecewise|piecewise|16|": 1, "piecewise|piecewise|4|": 7},
    "full": {"full|full|16|": 1, "full|full|4|": 7},
    "full_decode_only": {
        "full_decode_only|eager|15|not a decode step": 1,
        "full_decode_only|full|4|": 7,
    },
    "full_and_piecewise": {
        "full_and_piecewise|piecewise|16|": 1,
        "full_and_piecewise|full|4|": 7,
    },
}
CAPTURED = {
    "none": [],
    "piecewise": [("piecewise", 16), ("piecewise", 4), ("piecewise", 1)],
    "full": [("full", 16), ("full", 4), ("full", 4), ("full", 1), ("full", 1)],
    "full_decode_only": [("full", 4), ("full", 1)],
    "full_and_piecewise": [
        ("piecewise", 16),
        ("piecewise", 4),
        ("piecewise", 1),
        ("full", 4),
        ("full", 1),
    ],
}


def settings(graphs: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {"cudagraph_mode": graphs, "graph_device": "simulated"}
    return chosen if graphs == "none" else {**chosen, "cudagraph_capture_sizes": (1, 4, 16)}


@pytest.mark.parametrize("graphs", STEPS)
def test_steps_and_captures_are_counted_exactly(run: Any, graphs: str) -> None:
    ran = run(PROMPTS, NEW, **settings(graphs))
    assert ran.steps == STEPS[graphs]
    assert ran.captured == CAPTURED[graphs]
    events = ran.of(StepRan)
    assert len(events) == 8
    assert [event.num_tokens for event in events] == [15, *[3] * 7]
    assert all(event.graph_mode == graphs for event in events)
    assert all(event.seconds > 0 for event in ran.of(GraphCaptured))
    if graphs != "none":
        assert sum(event.num_bytes for event in ran.of(GraphCaptured)) > 0


def test_recordings_are_totalled_by_kind(run: Any) -> None:
    ran = run(PROMPTS, NEW, **settings("full_and_piecewise"))
    events = ran.of(GraphCaptured)
    totals = ran.stats.captures
    assert {kind: each.recorded for kind, each in totals.items()} == {"piecewise": 3, "full": 2}
    assert all(each.dropped == 0 for each in totals.values())
    for kind, each in totals.items():
        mine = [event for event in events if event.kind == kind]
        assert each.num_bytes == sum(event.num_bytes for event in mine)
        assert each.seconds == sum(event.seconds for event in mine)


def test_the_log_tells_at_the_end_what_ran(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        run(PROMPTS, NEW, **settings("full_and_piecewise"))
    # 15 of 16 rows, then 3 of 4, seven times.
    assert "8 steps; 18.2 % of 44 computed rows were padding" in caplog.text
    assert "7  full_and_piecewise: full, 4 tokens" in caplog.text
    assert "3  piecewise graphs recorded, 0 given up" in caplog.text


def test_a_lazy_step_that_records_is_not_counted_as_replayed(run: Any) -> None:
    ran = run(PROMPTS, NEW, **settings("full"), capture="lazy")
    first_met = "first met: recorded while it runs"
    assert ran.steps == {
        f"full|full|16|{first_met}": 1,
        f"full|full|4|{first_met}": 1,
        "full|full|4|": 6,
    }
    assert ran.captured == [("full", 16), ("full", 4)]


def test_a_batch_that_no_shape_covers_is_counted_with_its_reason(run: Any) -> None:
    ran = run(PROMPTS, NEW, **{**settings("full"), "cudagraph_capture_sizes": (2,)})
    assert ran.steps == {f"full|eager|15|{UNCOVERED}": 1, f"full|eager|3|{UNCOVERED}": 7}
