"""A tiny plugin from outside for each kind beside the three axes does its part in an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, SamplingParams
from engine.hookspecs import HOOK_OF_KIND
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

HEAD = """
from engine.hookspecs import hookimpl

ENGINE_API_VERSION = 1
"""
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def start(folder: Path, **settings: Any) -> LLM:
    return LLM(str(folder), **{"optimization_level": 0, "threads": 1, **settings})


def test_a_capture_size_policy_proposes_what_is_recorded(
    folder: Path, make_plugin: PluginMaker
) -> None:
    source = (
        HEAD
        + """
from engine.strategies import CaptureSizePolicy

class Odd(CaptureSizePolicy):
    NAME = "odd_sizes"
    SUMMARY = "one and three"

    def sizes(self, limits):
        return [1, 3]

@hookimpl
def engine_register_capture_sizes():
    return Odd
"""
    )
    make_plugin("odd_sizes", kind="capture_sizes", source=source)
    chosen = CompilationConfig(cudagraph_mode="piecewise", capture_size_policy="odd_sizes")
    with start(folder, graph_device="simulated", compilation_config=chosen) as llm:
        sizes = llm.resolution.config.compilation_config.cudagraph_capture_sizes
        assert sizes == (1, 3)
        llm.generate([[5, 6]], GREEDY, progress=False)
        assert llm.core.stats().steps["piecewise|piecewise|3|"] == 1


def test_an_observer_receives_every_event(folder: Path, make_plugin: PluginMaker) -> None:
    source = (
        HEAD
        + """
seen = []

@hookimpl
def engine_register_observer():
    return seen.append
"""
    )
    made = make_plugin("notebook", kind="observers", source=source)
    with start(folder, observers=("notebook",)) as llm:
        llm.generate([[5, 6]], GREEDY, progress=False)
    kinds = [type(event).__name__ for event in sys.modules[made.module].seen]
    assert kinds.count("StepRan") == 3
    assert "EngineReady" in kinds


def test_an_attention_implementation_computes(folder: Path, make_plugin: PluginMaker) -> None:
    source = (
        HEAD
        + """
from engine.testing.recordable_attention import RecordableAttention

class Mine(RecordableAttention):
    NAME = "mine"
    calls = 0

    def forward(self, *arguments):
        type(self).calls += 1
        super().forward(*arguments)

@hookimpl
def engine_register_attention():
    return Mine
"""
    )
    made = make_plugin("mine", kind="attention", source=source)
    with start(folder) as llm:
        expected = llm.generate([[5, 6, 7]], GREEDY, progress=False)[0].outputs[0].token_ids
    with start(folder, attention="mine") as llm:
        assert llm.generate([[5, 6, 7]], GREEDY, progress=False)[0].outputs[0].token_ids == expected
    assert sys.modules[made.module].Mine.calls > 0


def test_a_model_implementation_is_built(folder: Path, make_plugin: PluginMaker) -> None:
    source = (
        HEAD
        + """
from engine_model_llama.plugin import LlamaFamily

class Mine(LlamaFamily):
    NAME = "mine"
    PRIORITY = 99

    def build(self, config, *, dtype, device):
        model = super().build(config, dtype=dtype, device=device)
        plain = model.compute_logits
        model.compute_logits = lambda hidden: -plain(hidden)
        return model

@hookimpl
def engine_register_model():
    return Mine
"""
    )
    make_plugin("mine", kind="models", source=source)
    with start(folder, model_impl="llama") as llm:
        expected = llm.generate([[5, 6, 7]], GREEDY, progress=False)[0].outputs[0].token_ids
    with start(folder) as llm:
        tokens = llm.generate([[5, 6, 7]], GREEDY, progress=False)[0].outputs[0].token_ids
    assert tokens != expected


def test_a_weight_loader_fills_the_model(folder: Path, make_plugin: PluginMaker) -> None:
    source = (
        HEAD
        + """
import torch
from engine.weights import FolderWeightsPlugin

class Zeros(FolderWeightsPlugin):
    NAME = "zeros"
    SUMMARY = "every weight is zero"

    @classmethod
    def handles(cls, path):
        return False

    def tensors(self, path, config):
        return iter(())

    def load(self, model, path, config, events, seed):
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)

@hookimpl
def engine_register_weights():
    return Zeros
"""
    )
    make_plugin("zeros", kind="weights", source=source)
    with start(folder, load_format="zeros") as llm:
        # All logits are equal: the lowest id wins.
        assert llm.generate([[5, 6]], GREEDY, progress=False)[0].outputs[0].token_ids == [0, 0, 0]


def test_a_preset_says_what_the_levels_mean(folder: Path, make_plugin: PluginMaker) -> None:
    source = (
        HEAD
        + """
from engine.presets import Level, Preset

class Careful(Preset):
    NAME = "careful"
    SUMMARY = "compile nothing at any level"
    LEVELS = {n: Level("nothing", ("none",), ("none",), ("eager",), ("sdpa",)) for n in range(4)}

@hookimpl
def engine_register_preset():
    return Careful
"""
    )
    make_plugin("careful", kind="presets", source=source)
    with LLM(str(folder), threads=1, preset="careful", optimization_level=3) as llm:
        assert llm.resolution.config.compilation_config.mode == "none"
        assert llm.resolution["compilation_config.mode"].effective == "none"


def test_the_page_of_plugins_has_a_line_for_every_kind() -> None:
    page = (Path(__file__).parents[1] / "docs/plugin-api.md").read_text()
    assert [kind for kind in HOOK_OF_KIND if f"`engine.{kind}`" not in page] == []
