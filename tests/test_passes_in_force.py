"""What `passes` says is what runs: switched passes reach the compile mode in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, ConfigError, EngineConfig, Registry, SamplingParams
from engine.errors import BrokenPluginError
from engine.runtime.assembly import assemble
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
BODY = """
from engine.strategies import Pass as Base

class Made(Base):
    def run(self, graph):
        raise RuntimeError("it ran")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def start(folder: Path, mode: str, *passes: str) -> LLM:
    compilation: dict[str, Any] = {"mode": mode, "backend": "eager", "passes": passes}
    return LLM(str(folder), optimization_level=0, threads=1, compilation_config=compilation)


@pytest.mark.parametrize("mode", ["vllm_compile", "dynamo_trace_once"])
def test_a_pass_runs_when_it_is_switched_on_and_only_then(
    folder: Path, make_plugin: PluginMaker, mode: str
) -> None:
    make_plugin("loud", kind="passes", body=BODY, attributes={"STAGE": "graph"})
    with start(folder, mode) as llm:
        tokens = llm.generate("x", GREEDY)[0].outputs[0].token_ids
    with pytest.raises(BrokenPluginError, match="pass loud failed: RuntimeError: it ran"):
        start(folder, mode, "+loud")
    with start(folder, mode, "+noop_elimination") as llm:
        assert llm.generate("x", GREEDY)[0].outputs[0].token_ids == tokens


def test_a_pass_that_is_on_by_default_runs_until_it_is_switched_off(
    folder: Path, make_plugin: PluginMaker
) -> None:
    declared = {"STAGE": "graph", "ON_BY_DEFAULT": True}
    make_plugin("loud", kind="passes", body=BODY, attributes=declared)
    with pytest.raises(BrokenPluginError, match="it ran"):
        start(folder, "vllm_compile")
    start(folder, "vllm_compile", "-loud").close()


def test_a_switch_that_names_no_pass_is_refused_before_the_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.runtime.engine_core.build_model", None)
    with pytest.raises(
        ConfigError, match=r"'\+loudest' names no pass.*Installed: .*noop_elimination"
    ):
        start(folder, "vllm_compile", "+loudest")


def test_a_mode_that_runs_no_pass_says_that_switches_have_no_effect(folder: Path) -> None:
    with start(folder, "none", "+noop_elimination") as llm:
        assert llm.resolution["compilation_config.passes"].effective == "no effect"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("graphs", ["none", "piecewise"])
def test_a_pass_of_a_gpu_is_on_by_default_only_where_steps_are_replayed(
    make_plugin: PluginMaker, graphs: str, device: str
) -> None:
    declared = {"STAGE": "graph", "ON_BY_DEFAULT": frozenset({device})}
    make_plugin("counted", kind="passes", body=BODY, attributes=declared)
    config = EngineConfig(
        device=device,
        attention="sdpa",
        compilation_config=CompilationConfig(
            mode="vllm_compile", backend="eager", cudagraph_mode=graphs
        ),
    )
    on = {one.NAME for one in assemble(config, Registry()).passes}
    assert ("counted" in on) == (device == "cpu" or graphs == "piecewise")
