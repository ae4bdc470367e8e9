"""What a trace adds up to, on traces that were made up so that the answer is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from engine_tools.profile.summary import Total, summarize
from engine_tools.profile.trace import parse_events, read_trace

Made = list[dict[str, Any]]


def event(category: str, name: str, start: float, end: float, tid: int = 1) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start,
        "pid": 1, "tid": tid,
    }  # fmt: skip


def ours(name: str, start: float, end: float) -> dict[str, Any]:
    return event("user_annotation", f"engine:{name}", start, end)


def kernel(name: str, start: float, end: float) -> dict[str, Any]:
    return event("kernel", name, start, end, tid=7)


def two_steps() -> Made:
    """Two decode steps of 100 µs with 20 µs between them."""
    made: Made = []
    for at in (0, 120):
        made += [
            ours("step decode", at, at + 100),
            ours("schedule", at, at + 10),
            ours("prepare", at + 10, at + 30),
            ours("replay", at + 30, at + 60),
            ours("sample", at + 60, at + 70),
            ours("readback", at + 70, at + 90),
        ]
    return made


def test_ranges_are_added_up_by_name() -> None:
    (phase,) = summarize(parse_events(two_steps()))
    assert (phase.name, phase.steps, phase.step_us) == ("decode", 2, 100)
    assert phase.ranges == (
        Total("replay", 2, 60),
        Total("prepare", 2, 40),
        Total("readback", 2, 40),
        Total("sample", 2, 20),
        Total("schedule", 2, 20),
    )


def test_a_step_is_split_into_device_gaps_and_host() -> None:
    made = two_steps()
    for at in (0, 120):
        made += [
            kernel("first", at + 40, at + 50),
            # Two streams at once are busy once; a copy counts like a kernel.
            kernel("second", at + 45, at + 55),
            event("gpu_memcpy", "copy", at + 80, at + 85, tid=7),
            # Nothing of the host is the device's.
            event("cuda_runtime", "cudaLaunchKernel", at, at + 100),
            event("gpu_user_annotation", "engine:replay", at, at + 100, tid=7),
        ]
    (phase,) = summarize(parse_events(made))
    shares = {each.name: (each.us, each.share) for each in phase.shares}
    # Busy 40-55 and 80-85. Idle in replay 30-40 and 55-60, in readback 70-80 and 85-90.
    assert shares == {"device": (20, 0.2), "launch gaps": (30, 0.3), "host": (50, 0.5)}
    assert phase.top == (Total("first", 2, 20), Total("second", 2, 20), Total("copy", 2, 10))


def test_a_kernel_that_runs_on_after_its_step_counts_within_the_steps_only() -> None:
    made = [*two_steps(), kernel("long", 90, 130), kernel("afterwards", 500, 600)]
    (phase,) = summarize(parse_events(made))
    assert {each.name: each.us for each in phase.shares}["device"] == 10
    assert [each.name for each in phase.top] == ["long"]


def test_without_a_device_a_step_is_split_into_operators_and_host() -> None:
    made = two_steps()
    for at in (0, 120):
        made += [
            event("cpu_op", "aten::linear", at + 30, at + 50),
            event("cpu_op", "aten::mm", at + 35, at + 45),
            event("cpu_op", "aten::argmax", at + 62, at + 66),
            event("cpu_op", "of another thread", at, at + 100, tid=2),
        ]
    (phase,) = summarize(parse_events(made))
    shares = {each.name: each.us for each in phase.shares}
    # Operators 30-50 and 62-66; the rest of the replay is 50-60.
    assert shares == {"operators": 24, "forward pass outside of operators": 10, "host": 66}
    # An operator's own time is without those inside it.
    assert phase.top == (
        Total("aten::linear", 2, 20),
        Total("aten::mm", 2, 20),
        Total("aten::argmax", 2, 8),
    )


def test_phases_are_kept_apart() -> None:
    prefill = [ours("step prefill", -500, -100), ours("forward", -400, -200)]
    first, second = summarize(parse_events([*prefill, *two_steps()]))
    assert (first.name, first.steps, first.step_us) == ("prefill", 1, 400)
    assert first.ranges == (Total("forward", 1, 200),)
    assert (second.name, second.steps) == ("decode", 2)


def test_shares_add_up_to_one() -> None:
    for extra in ([], [kernel("k", 3, 77), kernel("k", 70, 95)]):
        (phase,) = summarize(parse_events([*two_steps(), *extra]))
        assert sum(each.share for each in phase.shares) == pytest.approx(1)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_read_compressed_or_not(tmp_path: Path, name: str) -> None:
    data = json.dumps({"traceEvents": [*two_steps(), {"ph": "M", "name": "process_name"}]}).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_trace(path) == parse_events(two_steps())
