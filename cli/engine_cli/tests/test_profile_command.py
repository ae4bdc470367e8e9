"""`engine profile` and `engine explain` with a tiny model on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.testing.tiny import write_tiny_model

Engine = Callable[..., Any]
RANGES = {"schedule", "prepare", "sample", "readback", "finish"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def test_a_profile_says_where_the_time_of_a_step_goes(
    engine: Engine, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "trace.json"
    sizes = ("--steps", "3", "--batch", "2", "--prompt-tokens", "7")
    graphs = ("--cudagraph-mode", "piecewise", "--graph-device", "simulated")
    modes = ("--compilation-mode", "none", *graphs, "--cudagraph-capture-sizes", "2")
    outcome = engine("profile", model, *sizes, *modes, "--out", str(out), "--json", "-q")
    assert outcome.code == 0
    shown = json.loads(outcome.out)
    assert shown["trace"] == str(out)
    assert shown["plain_us"] > 0
    prefill, decode = shown["phases"]
    assert (prefill["name"], prefill["steps"]) == ("prefill", 1)
    assert (decode["name"], decode["steps"]) == ("decode", 3)
    counts = {each["name"]: each["count"] for each in decode["ranges"]}
    assert {name: counts[name] for name in RANGES} == dict.fromkeys(RANGES, 3)
    # Two layers: two calls of attention between three segments.
    assert (counts["replay"], counts["segment"], counts["break op"]) == (3, 9, 6)
    assert "forward" in {each["name"] for each in prefill["ranges"]}
    for phase in shown["phases"]:
        assert sum(share["share"] for share in phase["shares"]) == pytest.approx(1)
        assert phase["top"]
    names = {each.get("name") for each in json.loads(out.read_text())["traceEvents"]}
    assert {"engine:step decode", "engine:replay", "engine:segment"} <= names


def test_a_profile_is_shown_as_tables(engine: Engine, model: str, tmp_path: Path) -> None:
    out = tmp_path / "trace.json.gz"
    outcome = engine(
        "profile", model, "--enforce-eager", "--steps", "2", "--out", str(out), "--quiet"
    )
    assert outcome.code == 0
    assert "decode: 2 steps" in outcome.out
    assert "% " in outcome.out
    assert "aten::" in outcome.out
    assert out.read_bytes()[:2] == b"\x1f\x8b"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--batch", "3", "--max-num-seqs", "2"), "--batch=3: at most 2 sequences run at once"),
        (("--prompt-tokens", "300"), "--prompt-tokens=300, --steps=20: 1 sequences of 323 tokens"),
        (("--out", "absent/trace.json"), "--out='absent/trace.json': can't be written"),
    ],
)
def test_a_profile_that_cannot_be_made_says_what_to_change(
    engine: Engine, model: str, arguments: tuple[str, ...], says: str
) -> None:
    outcome = engine("profile", model, "--enforce-eager", "-q", *arguments)
    assert outcome.code == 2
    assert says in outcome.err
    assert "Traceback" not in outcome.err


def test_explain_tells_the_plan_and_the_cost(engine: Engine, model: str, tmp_path: Path) -> None:
    settings = (model, "--enforce-eager", "--cache-dir", str(tmp_path))
    before = engine("explain", *settings)
    assert "compile (none): nothing\ncapture (none): nothing\ncost: not known" in before.out
    prompt = ("generate", "-m", *settings, "-q", "--max-tokens", "1", "hello")
    assert engine(*prompt).code == 0
    after = engine("explain", *settings)
    assert "cost: the last start that compiled nothing here took" in after.out
    shown = json.loads(engine("explain", *settings, "--json").out)
    assert shown["plan"]["compile"]["mode"] == "none"
    assert shown["plan"]["capture"]["sizes"] == {}
    assert shown["plan"]["starts"]["compiled"] is None
    assert shown["plan"]["starts"]["loaded"]["ledger"]["seconds"] > 0
