"""The kit as its users meet it: under pytest, with expected failures, and without pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.testing import CompileStrategyConformance, run_checks
from engine.testing.distributions import PluginMaker

WRONG_BODY = """
from engine.strategies import CompiledModel, CompileReport, CompileStrategy as Base

class Made(Base):
    USES_BACKEND = False
    def compile(self, job):
        return CompiledModel(lambda ids, at: job.model(ids, at) + 1, CompileReport())
"""
PARITY = "any_number_of_tokens_gives_what_the_module_gives"
SUITE = """
from engine.testing import CompileStrategyConformance

class TestMine(CompileStrategyConformance):
    strategy = "mine"
    expected_failures = {expected}
"""


@pytest.fixture
def run_pytest(tmp_path: Path, make_plugin: PluginMaker, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]  # a function of strings
    """Run a suite for a wrong compile mode in a fresh pytest, as its author would."""
    made = make_plugin("mine", body=WRONG_BODY)
    monkeypatch.setenv("PYTHONPATH", str(made.folder))

    def run(expected: dict[str, str]) -> str:
        (tmp_path / "test_mine.py").write_text(SUITE.format(expected=expected))
        names = f"{PARITY} or inputs_a_b_a or kept_if or second_start"
        options = ["-q", "-rA", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-k", names]
        command = [sys.executable, "-m", "pytest", *options, "test_mine.py"]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        ).stdout

    return run


def test_a_failure_says_what_is_asked_and_an_expected_one_is_no_failure(run_pytest) -> None:  # type: ignore[no-untyped-def]  # the fixture
    reason = "it adds one, for a paper about off-by-one errors"
    said = run_pytest({PARITY: reason})
    assert re.search(r"1 failed, 1 passed, 1 skipped, .*1 xfailed", said)
    assert "Inputs are read at each step" in said
    assert "where" in said
    assert reason in said
    assert "it doesn't read cache_dir, so it keeps no artifacts" in said


def test_an_expected_failure_that_passes_is_a_failure(run_pytest) -> None:  # type: ignore[no-untyped-def]  # the fixture
    said = run_pytest(
        {
            PARITY: "known",
            "inputs_a_b_a": "known",
            "artifacts_are_kept_if_and_only_if_it_says_so": "not true",
        }
    )
    assert "[XPASS(strict)] not true" in said
    assert "1 failed" in said


def test_an_expected_failure_of_no_check_is_an_error(run_pytest) -> None:  # type: ignore[no-untyped-def]  # the fixture
    assert "expected_failures names 'paritty', which is no check" in run_pytest({"paritty": "x"})
    with pytest.raises(ValueError, match="gives no reason"):
        run_checks(type("T", (CompileStrategyConformance,), {"expected_failures": {PARITY: " "}}))


def test_a_check_cannot_be_replaced_silently() -> None:
    with pytest.raises(TypeError, match=r"TestMine replaces the check .*expected_failures"):

        class TestMine(CompileStrategyConformance):
            def test_inputs_a_b_a(self) -> None:
                pass


def test_checks_run_without_pytest(make_plugin: PluginMaker) -> None:
    make_plugin("mine", body=WRONG_BODY)

    class Mine(CompileStrategyConformance):
        strategy = "mine"

    suite = Mine
    (outcome,) = run_checks(suite, names=[PARITY])
    assert outcome.state == "failed"
    assert "compile_modes/mine" in outcome.detail
    expected = type("E", (suite,), {"expected_failures": {PARITY: "known"}})
    assert run_checks(expected, names=[PARITY])[0].state == "expected"
    unneeded = type("U", (suite,), {"expected_failures": {"it_describes_itself": "known"}})
    (outcome,) = run_checks(unneeded, names=["it_describes_itself"])
    assert outcome.state == "failed"
    assert "it passes, but is expected to fail: known" in outcome.detail
    assert len(run_checks(suite, quick=True)) < len(suite.checks())


def test_pytest_starts_without_the_kit() -> None:
    code = (
        "import sys, engine.testing.pytest_plugin, engine.testing\n"
        "print([m for m in ('torch', 'engine.registry', 'pydantic') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
