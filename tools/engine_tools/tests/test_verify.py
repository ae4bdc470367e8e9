"""A right combination is found right, and each planted fault wrong, at its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import EngineError, Registry, Settings
from engine.plugin import Numerics
from engine_cli.main import main
from engine_tools.verify import (
    Answer,
    Batch,
    Combination,
    Comparison,
    Limits,
    Verification,
    check_all,
    combinations,
    compare,
    workload,
)

Make = Callable[..., Settings]


def verified(settings: Settings) -> Comparison:
    return Verification(settings).check(settings).comparison


def test_a_right_combination_is_right_in_every_respect(settings: Make) -> None:
    chosen = settings("vllm_compile", "piecewise", max_cudagraph_capture_size=4)
    report = Verification(chosen).check(chosen)
    assert report.ok
    assert report.numerics is Numerics.TOLERANCE
    assert (report.place, report.unreached) == ("", ())
    assert {label.split("|")[1] for label in report.steps} == {"piecewise", "eager"}
    assert [check.name for check in report.checks][-1] == "poisoned buffers reach no answer"
    assert report.comparison.tokens > 100


def test_a_mode_that_declares_the_same_bits_is_held_to_them(settings: Make) -> None:
    report = Verification(settings()).check(settings())
    assert report.ok
    assert report.numerics is Numerics.BITWISE
    assert (report.comparison.bound, report.comparison.deviation) == (0.0, 0.0)


@pytest.mark.usefixtures("faults")
def test_a_wrong_pass_is_found_with_the_layer(settings: Make) -> None:
    chosen = settings("vllm_compile", passes=("+louder",))
    report = Verification(chosen).check(chosen)
    assert not report.ok
    assert report.passes == ("louder", "packed_linear")
    # The first layer's attention comes before its activation; the second's is the first to see it.
    assert report.place.startswith("layer 1: what engine::attention number 2 writes")


@pytest.mark.usefixtures("faults")
def test_a_compile_mode_that_is_wrong_at_one_size_is_found_there(settings: Make) -> None:
    report = Verification(settings("hasty")).check(settings("hasty"))
    assert not report.ok
    assert {d.batch for d in report.comparison.divergences} >= {"prefill of 3"}
    assert "prefill of 2" not in {d.batch for d in report.comparison.divergences}


@pytest.mark.usefixtures("faults")
def test_a_graph_mode_that_replays_old_inputs_is_found_outside_the_layers(settings: Make) -> None:
    chosen = settings("none", "stale", max_cudagraph_capture_size=4)
    report = Verification(chosen).check(chosen)
    wrong = [check.name for check in report.checks if not check.ok]
    assert "greedy tokens are the reference's" in wrong
    assert "poisoned buffers reach no answer" in wrong
    assert report.place.startswith("no layer of a prefill without graphs")


def test_the_workload_reaches_every_size_and_its_neighbours() -> None:
    limits = Limits(100, max_num_seqs=9, max_num_batched_tokens=32, max_model_len=64, sizes=(2, 8))
    batches = {batch.name: batch for batch in workload(limits, 0)}
    assert {f"prefill of {n}" for n in (1, 2, 3, 7, 8, 9)} <= {*batches}
    decode = batches["decode of 9, 8, 7, 3, 2, 1"]
    live = [sum(new > step for new in decode.new) for step in range(1, max(decode.new))]
    assert live == [9, 9, 8, 8, 7, 7, 3, 3, 2, 2, 1, 1]
    assert batches["A again"].prompts == batches["A"].prompts
    lengths = [len(prompt) for prompt in batches["prefill beside decode"].prompts]
    assert max(lengths) > 32
    assert len(lengths) > limits.max_num_seqs


def test_prompts_of_ones_own_are_answered_first(settings: Make) -> None:
    verification = Verification(settings(), prompts=["Hello"])
    assert verification.batches[0].name == "your prompts"
    assert verification.answers["your prompts"][0].tokens


def answered(*tokens: int, margin: float = 1.0, logprob: float = -1.0) -> Answer:
    count = len(tokens)
    return Answer(tokens, tokens, (logprob,) * count, (margin,) * count, (-2.0,))


ONE = [Batch("one", ((5,),), (2,))]


@pytest.mark.parametrize(
    ("found", "numerics", "dtype", "kinds"),
    [
        (answered(1, 2), Numerics.BITWISE, "float32", []),
        (answered(1, 2, logprob=-1.0001), Numerics.BITWISE, "float32", ["probability"]),
        (answered(1, 2, logprob=-1.0001), Numerics.TOLERANCE, "float32", []),
        (answered(1, 2, logprob=-1.1), Numerics.TOLERANCE, "float32", ["probability"]),
        (answered(1, 2, logprob=-1.1), Numerics.TOLERANCE, "bfloat16", []),
        (answered(1, 2, logprob=float("nan")), Numerics.TOLERANCE, "bfloat16", ["probability"]),
        (answered(1, 3), Numerics.TOLERANCE, "bfloat16", ["token"]),
        (answered(1), Numerics.TOLERANCE, "float32", ["token"]),
    ],
)
def test_what_a_class_and_a_dtype_allow(
    found: Answer, numerics: Numerics, dtype: str, kinds: list[str]
) -> None:
    result = compare(
        ONE, {"one": [answered(1, 2)]}, {"one": [found]}, numerics=numerics, dtype=dtype
    )
    assert [divergence.kind for divergence in result.divergences] == kinds


def test_a_near_tie_is_told_and_forgiven() -> None:
    near = {"one": [answered(1, 2, margin=0.3)]}
    other = {"one": [answered(1, 3)]}
    result = compare(ONE, near, other, numerics=Numerics.TOLERANCE, dtype="bfloat16")
    assert (result.differing, result.near_ties, result.divergences) == (2, 2, ())
    strict = compare(ONE, near, other, numerics=Numerics.TOLERANCE, dtype="float32")
    assert [d.kind for d in strict.divergences] == ["token"]


def test_every_installed_combination_is_in_the_matrix() -> None:
    registry = Registry()
    found = combinations(registry)
    assert Combination("none", "none", "eager") in found
    assert Combination("vllm_compile", "full_and_piecewise", "inductor") in found
    modes, graphs = registry.names("compile_modes"), registry.names("cudagraph_modes")
    assert len(found) == len(graphs) * (1 + (len(modes) - 1) * len(registry.names("backends")))


@pytest.mark.usefixtures("faults")
def test_the_matrix_goes_on_after_a_refusal_and_a_fault(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [
        Combination("none", "none", "eager"),
        Combination("none", "full", "eager"),  # nothing records graphs here
        Combination("hasty", "none", "eager"),
    ]
    monkeypatch.setattr("engine_tools.verify.matrix.combinations", lambda _registry: chosen)
    right, refused, wrong = check_all(Verification(settings()), settings())
    assert right.ok
    assert right.report is not None
    assert refused.report is None
    assert "can't record graphs" in refused.refusal
    assert not wrong.ok


def test_the_command_says_right_with_0_and_wrong_with_1(
    tiny_model: Path, faults: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        str(tiny_model),
        "--device",
        "cpu",
        "--max-num-seqs",
        "4",
        "--num-kv-blocks",
        "99",
        "--threads",
        "1",
    ]
    off = ["--cudagraph-mode", "none", "--backend", "eager"]
    assert main(["verify", *common, *off, "--compilation-mode", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["verify", *common, *off, "--compilation-mode", "hasty"]) == 1
    out = capsys.readouterr().out
    assert "WRONG  log-probabilities are near the reference's" in out
    assert out.endswith("wrong\n")


def test_a_combination_that_is_refused_is_no_verdict(settings: Make) -> None:
    with pytest.raises(EngineError, match="can't record graphs"):
        Verification(Combination("none", "full", "eager").within(settings("none")))
