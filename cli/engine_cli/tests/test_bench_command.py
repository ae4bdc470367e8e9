"""`engine bench` on a tiny model: its flags, its output, and what it refuses before it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.testing.tiny import write_tiny_model

Engine = Callable[..., Any]
CPU = ("--device", "cpu", "--threads", "1", "--num-kv-blocks", "100", "--enforce-eager")
SIZES = ("--input-len", "5", "--output-len", "4", "--repeats", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def test_latency_is_printed_and_written(engine: Engine, model: str, tmp_path: Path) -> None:
    data, page = tmp_path / "latency.json", tmp_path / "latency.html"
    files = ("--json", str(data), "--report", str(page))
    outcome = engine("bench", "latency", model, *CPU, *SIZES, "--batch-size", "2", *files)
    assert outcome.code == 0
    header, *rows = outcome.out.splitlines()
    assert " ".join(header.split()) == "figure unit p50 p90 p99 repeats median min max floor"
    assert rows[0].startswith("TTFT")
    assert "round 2 of 2" in outcome.err
    written = json.loads(data.read_text())
    assert written["workload"] == {
        "batch_size": 2,
        "input_len": 5,
        "output_len": 4,
        "repeats": 2,
        "warm_up": 1,
        "seed": 0,
    }
    assert "<svg" in page.read_text()


def test_throughput_prints_nothing_else_when_quiet(engine: Engine, model: str) -> None:
    outcome = engine("bench", "throughput", model, *CPU, *SIZES, "--num-prompts", "3", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert "tokens/s" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("matrix", "--backend", "eager"),
            "--backend: a matrix runs several; use --backends to choose among them",
        ),
        (("matrix", "--enforce-eager"), "--enforce-eager: a matrix runs several; use --modes"),
        (("matrix", "--modes", "none,nome"), "--modes=nome: "),
        (("startup", "--json", "absent/x.json"), "--json=absent/x.json: can't be written"),
        (("latency", "--report", "x.svg"), "--report=x.svg: its name must end in .html or .png"),
        (("throughput", "--batch-size", "3"), "No such option '--batch-size'"),
        (("serve", "--request-rate", "0"), "Invalid value for '--request-rate'"),
        (("serve", "--url", "127.0.0.1:9"), "is a server running there?"),
    ],
)
def test_mistakes_are_told_with_what_to_change(
    engine: Engine, arguments: tuple[str, ...], says: str
) -> None:
    outcome = engine("bench", *arguments)
    assert outcome.code == 2
    assert says in outcome.err
    assert "Traceback" not in outcome.err


def test_a_report_without_matplotlib_is_refused_before_anything_runs(
    engine: Engine, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = engine("bench", "latency", model, *CPU, "--report", str(tmp_path / "x.html"))
    assert outcome.code == 2
    assert "pip install 'modular-engine[report]'" in outcome.err
    assert "load" not in outcome.err
