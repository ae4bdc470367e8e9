"""Latency, throughput and starts of a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import MixtralConfig

from engine import LLM, ConfigError, EngineError, Settings
from engine.settings import as_settings
from engine.testing.reference import random_reference
from engine_tools.bench.child import reply_of
from engine_tools.bench.fresh import pack_settings, run_fresh, unpack_settings
from engine_tools.bench.latency import bench_latency
from engine_tools.bench.machine import streamed_bytes
from engine_tools.bench.running import Prompter, Workload, run_batch
from engine_tools.bench.startup import bench_startup
from engine_tools.bench.throughput import bench_throughput, rates

Make = Callable[..., Settings]
SMALL = Workload(batch_size=2, input_len=5, output_len=4, repeats=2)


def test_each_token_of_each_sequence_has_its_time(settings: Make) -> None:
    with LLM(engine_config=settings()) as llm:
        prompts = Prompter(llm.core.vocab_size, seed=0).prompts(3, 40)
        lines = run_batch(llm, prompts, 6)
    assert [len(line.arrivals) for line in lines] == [6, 6, 6]
    assert all(list(line.arrivals) == sorted(line.arrivals) for line in lines)
    # A step takes 32 tokens: the prompts are computed one after another.
    assert lines[0].ttft < lines[1].ttft < lines[2].ttft


def test_latency_has_percentiles_a_spread_and_a_floor(settings: Make) -> None:
    said: list[str] = []
    result = bench_latency(settings(), SMALL, progress=said.append)
    figures = {figure.name: figure for figure in result.figures}
    assert said == ["warm-up", "round 1 of 2", "round 2 of 2"]
    assert [*figures] == ["TTFT", "ITL", "TPOT", "end to end", "decode step"]
    assert {len(figure.rounds) for figure in result.figures} == {2}
    assert figures["end to end"].minimum > figures["TTFT"].minimum > 0
    floors = {name: figure.floor for name, figure in figures.items()}
    assert floors["ITL"] == floors["TPOT"] == floors["decode step"]
    assert floors["TTFT"] is floors["end to end"] is None
    assert "floor of a decode step: " in result.notes[-1]
    assert result.memory["host"] > 2**20
    assert {"torch", "processor", "threads", "copy bandwidth"} <= {*result.machine}
    assert result.settings["compilation_config"]["mode"] == "none"


def test_a_single_token_has_no_step_after_it(settings: Make) -> None:
    result = bench_latency(settings(), Workload(1, 5, 1, repeats=1, warm_up=0))
    assert [figure.name for figure in result.figures] == ["TTFT", "end to end"]


def test_an_untied_embedding_table_is_not_read_by_a_step(settings: Make) -> None:
    with LLM(engine_config=settings()) as llm:
        facts = llm.core.checkpoint.facts
        assert not llm.core.checkpoint.config.tie_word_embeddings
        table = facts.vocab_size * facts.hidden_size
        assert streamed_bytes(llm) == 4 * (llm.core.num_parameters - table)


def test_throughput_takes_more_prompts_than_run_at_once(settings: Make) -> None:
    result = bench_throughput(settings(), Workload(9, 5, 4, repeats=2))
    figures = {figure.name: figure for figure in result.figures}
    ratio = figures["total tokens"].median / figures["output tokens"].median
    assert ratio == pytest.approx(9 / 4)
    assert len(figures["requests"].rounds) == 2


def test_rates_are_counts_over_seconds() -> None:
    figures = {figure.name: figure.rounds for figure in rates(Workload(10, 5, 4), [2.0, 4.0])}
    assert figures == {
        "output tokens": (20.0, 10.0),
        "total tokens": (45.0, 22.5),
        "requests": (5.0, 2.5),
        "whole run": (2.0, 4.0),
    }


@pytest.mark.parametrize(
    ("bench", "workload", "says"),
    [
        (bench_latency, Workload(5, 5, 4), "--batch-size=5: at most 4 sequences run at once"),
        (bench_latency, Workload(1, 250, 10), "--input-len=250, --output-len=10: sequences of 260"),
        (bench_throughput, Workload(5, 250, 10), "don't fit the context of 256 tokens"),
    ],
)
def test_a_workload_that_does_not_fit_is_refused(
    settings: Make, bench: Callable[..., object], workload: Workload, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        bench(settings(), workload)


def test_dummy_weights_are_measured_like_any(settings: Make, tmp_path: Path) -> None:
    given = settings()
    (tmp_path / "config.json").write_text(Path(str(given.config.model), "config.json").read_text())
    update = {"load_format": "dummy", "model": str(tmp_path), "skip_tokenizer": True}
    dummy = Settings(given.config.model_copy(update=update), given.origins)
    assert bench_throughput(dummy, SMALL).figures[0].median > 0


def test_settings_reach_another_process_as_they_are(settings: Make) -> None:
    given = settings("vllm_compile", "piecewise", cudagraph_capture_sizes=(1, 2))
    assert unpack_settings(pack_settings(given)) == given


@pytest.mark.slow
def test_starts_are_measured_cold_and_warm_in_fresh_processes(settings: Make) -> None:
    result = bench_startup(settings("vllm_compile", passes=("+noop_elimination",)), repeats=1)
    figures = {figure.name: figure.median for figure in result.figures}
    for kind in ("cold", "warm"):
        phases = [name for name in figures if name.startswith(kind)]
        assert {f"{kind}: {phase}" for phase in ("imports", "load", "compile", "ready")} <= {
            *phases
        }
        parts = [n for n in phases if not n.endswith(": ready") and ": compile: " not in n]
        assert sum(figures[part] for part in parts) == pytest.approx(figures[f"{kind}: ready"])
    assert "cold: compile: trace" in figures
    assert [note.partition(":")[0] for note in result.notes] == ["cold", "warm"]
    # The engine's own cache was somewhere else than the user's.
    assert "/store" in result.settings["compilation_config"]["cache_dir"]


def test_a_start_that_is_refused_is_told_with_its_reason(settings: Make) -> None:
    refused = settings("none", "full")
    config = refused.config.model_copy(update={"graph_device": "auto"})
    with pytest.raises(EngineError, match=r"the cold start: .*--graph-device simulated"):
        bench_startup(Settings(config, refused.origins), repeats=1)


def test_what_a_process_says_when_it_fails_is_kept() -> None:
    assert reply_of("builtins:len", [1, 2]) == {"outcome": "done", "value": 2}
    broken = reply_of("builtins:len", 5)
    assert broken["outcome"] == "failed"
    assert broken["reason"].startswith("TypeError: ")
    gone = run_fresh("os:_exit", {})
    assert (gone.outcome, gone.reason) == ("failed", gone.reason)
    assert "TypeError" in gone.reason
    slow = run_fresh("time:sleep", {}, timeout=0.01)
    assert slow.reason == "it was ended after 0.01 s without an answer"


def test_the_floor_of_a_model_with_experts_is_unknown(settings: Make, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48}
    config = MixtralConfig(
        **sizes,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        sliding_window=None,
    )
    random_reference(config, seed=0).save_pretrained(tmp_path)
    chosen = settings().config.model_copy(update={"model": str(tmp_path), "skip_tokenizer": True})
    result = bench_latency(as_settings(chosen), Workload(1, 5, 3, repeats=1, warm_up=0))
    assert {figure.floor for figure in result.figures} == {None}
    assert any("floor of a decode step: unknown" in note for note in result.notes)
