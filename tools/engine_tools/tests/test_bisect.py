"""Each planted fault is named, with the smallest combination and a script that shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import EngineError, Settings
from engine.plugin_files import VARIABLE
from engine_cli.main import main
from engine_tools.bisect import Bisection, Finding
from engine_tools.verify import Combination, Verification

Make = Callable[..., Settings]

pytestmark = pytest.mark.usefixtures("faults")


def found(settings: Settings) -> Finding:
    return Bisection(Verification(settings), settings).run()


def test_nothing_is_named_where_nothing_is_wrong(settings: Make) -> None:
    finding = found(settings("vllm_compile"))
    assert finding.culprit == ""
    assert [trial.what for trial in finding.trials] == ["as given"]


def test_a_wrong_pass_among_others_is_named_with_its_layer(settings: Make) -> None:
    finding = found(settings("vllm_compile", passes=("+silu_mul", "+louder", "+add_rms_norm")))
    assert finding.culprit == "pass louder"
    assert finding.place.startswith("layer 1: ")
    switches = set(finding.settings.config.compilation_config.passes)
    # silu_mul found nothing to change, so it needn't be switched off.
    assert switches == {"+silu_mul", "+louder", "-add_rms_norm", "-packed_linear"}


def test_a_wrong_backend_is_named(settings: Make) -> None:
    finding = found(settings("vllm_compile", backend="sloppy"))
    assert finding.culprit == "backend sloppy"
    # The second piece that it is given stands behind the first layer's attention.
    assert finding.place.startswith("layer 1: ")


def test_a_wrong_compile_mode_is_named(settings: Make) -> None:
    finding = found(settings("hasty"))
    assert finding.culprit == "compile mode hasty"
    # Its fault is in batches of three, and the one prompt that went wrong first is none.
    assert finding.place.endswith("or a batch of another size")


def test_a_wrong_graph_mode_is_named_with_its_segment(settings: Make) -> None:
    finding = found(settings("vllm_compile", "stale", max_cudagraph_capture_size=4))
    assert finding.culprit == "graph mode stale"
    assert "differs from the step without graphs" in finding.place


def test_two_faults_are_told_from_one_another(settings: Make) -> None:
    """The graphs are right here, so a fault that stays without them isn't theirs."""
    finding = found(
        settings("vllm_compile", "piecewise", passes=("+louder",), max_cudagraph_capture_size=4)
    )
    assert finding.culprit == "pass louder"
    assert str(finding.settings.config.compilation_config.cudagraph_mode) == "none"


def test_a_combination_that_is_refused_is_an_error(settings: Make) -> None:
    verification = Verification(settings())
    refused = Combination("none", "full", "eager").within(settings())
    with pytest.raises(EngineError, match="can't record graphs"):
        Bisection(verification, refused).run()


def test_the_script_shows_the_fault_by_itself(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "fault.py"
    arguments = ["--device", "cpu", "--max-num-seqs", "4", "--num-kv-blocks", "99"]
    arguments += ["--threads", "1", "--backend", "eager", "--cudagraph-mode", "none"]
    arguments += ["--compilation-mode", "vllm_compile", "--passes", "+louder", "--out", str(script)]
    assert main(["bisect", str(tiny_model), *arguments]) == 1
    out = capsys.readouterr().out
    assert "as given: wrong\nall passes off: right\n" in out
    assert "culprit: pass louder" in out
    assert f"written: {script}" in out
    # The variable that names the plugin file isn't inherited: the script brings it.
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env=without_plugins(),
    )
    assert (run.returncode, run.stdout.splitlines()[-1]) == (1, "wrong"), run.stderr


def without_plugins() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != VARIABLE}
