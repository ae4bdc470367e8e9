"""A tiny plugin from outside for each kind beside the three axes does its part in an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, SamplingParams
from engine.hookspecs import HOOK_OF_KIND
from engine.testing.compiling import ToyDecoder
from engine.testing.distributions import MadePlugin, PluginMaker
from engine.testing.paged import PagedRunner
from engine.testing.recordable_attention import RecordableAttention
from engine.testing.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def start(folder: Path, **settings: Any) -> LLM:
    return LLM(str(folder), **{"optimization_level": 0, "threads": 1, **settings})


def tokens(llm: LLM, prompt: list[int]) -> list[int]:
    return llm.generate([prompt], GREEDY, progress=False)[0].outputs[0].token_ids


def made_in(plugin: MadePlugin) -> Any:
    """Return what a plugin's module calls `Made`."""
    return sys.modules[plugin.module].Made


def test_a_capture_size_policy_proposes_what_is_recorded(
    folder: Path, make_plugin: PluginMaker
) -> None:
    body = """
from engine.strategies import CaptureSizePolicy

class Made(CaptureSizePolicy):
    def sizes(self, limits):
        return [1, 3]
"""
    make_plugin("odd_sizes", kind="capture_sizes", body=body)
    chosen = CompilationConfig(cudagraph_mode="piecewise", capture_size_policy="odd_sizes")
    with start(folder, graph_device="simulated", compilation_config=chosen) as llm:
        sizes = llm.resolution.config.compilation_config.cudagraph_capture_sizes
        assert sizes == (1, 3)
        tokens(llm, [5, 6])
        assert llm.core.stats().steps["piecewise|piecewise|3|"] == 1


def test_an_observer_receives_every_event(folder: Path, make_plugin: PluginMaker) -> None:
    body = """
seen = []

def Made(event):
    seen.append(event)
"""
    made = make_plugin("notebook", kind="observers", body=body)
    with start(folder, observers=("notebook",)) as llm:
        tokens(llm, [5, 6])
    kinds = [type(event).__name__ for event in sys.modules[made.module].seen]
    assert kinds.count("StepRan") == 3
    assert "EngineReady" in kinds


def test_an_attention_implementation_computes(folder: Path, make_plugin: PluginMaker) -> None:
    body = """
from engine.testing.recordable_attention import RecordableAttention

class Made(RecordableAttention):
    calls = 0

    def forward(self, *arguments):
        type(self).calls += 1
        super().forward(*arguments)
"""
    made = make_plugin("mine", kind="attention", body=body)
    with start(folder) as llm:
        expected = tokens(llm, [5, 6, 7])
    with start(folder, attention="mine") as llm:
        assert tokens(llm, [5, 6, 7]) == expected
    assert made_in(made).calls > 0


def test_a_model_implementation_is_built(folder: Path, make_plugin: PluginMaker) -> None:
    body = """
from engine.models import ModelPlugin
from engine.testing.compiling import ToyDecoder

class Made(ModelPlugin):
    PRIORITY = 99

    @classmethod
    def handles(cls, config):
        return True

    def build(self, config, *, dtype, device):
        return ToyDecoder(2, vocab=config.vocab_size).to(dtype=dtype, device=device)
"""
    make_plugin("mine", kind="models", body=body)
    with start(folder) as llm:
        found, vocab_size = tokens(llm, [5, 6, 7]), llm.core.vocab_size
    # The same model, step by step, without an engine.
    model, context = ToyDecoder(2, vocab=vocab_size), [5, 6, 7]
    for token in found:
        runner = PagedRunner(model, RecordableAttention(), num_blocks=4, block_size=4)
        (hidden,) = runner.forward([("alone", context)])
        assert token == int(model.compute_logits(hidden[-1:]).argmax())
        context.append(token)


def test_a_weight_loader_fills_the_model(folder: Path, make_plugin: PluginMaker) -> None:
    body = """
import torch
from engine.weights import FolderWeightsPlugin

class Made(FolderWeightsPlugin):
    @classmethod
    def handles(cls, path):
        return False

    def tensors(self, path, config):
        return iter(())

    def load(self, model, path, config, events, seed):
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
"""
    make_plugin("zeros", kind="weights", body=body)
    with start(folder, load_format="zeros") as llm:
        # All logits are equal: the lowest id wins.
        assert tokens(llm, [5, 6]) == [0, 0, 0]


def test_a_preset_says_what_the_levels_mean(folder: Path, make_plugin: PluginMaker) -> None:
    body = """
from engine.presets import Level, Preset

class Made(Preset):
    LEVELS = {n: Level("nothing", ("none",), ("none",), ("eager",), ("sdpa",)) for n in range(4)}
"""
    make_plugin("careful", kind="presets", body=body)
    with LLM(str(folder), threads=1, preset="careful", optimization_level=3) as llm:
        assert llm.resolution.config.compilation_config.mode == "none"
        assert llm.resolution["compilation_config.mode"].effective == "none"


def test_the_page_of_plugins_has_a_line_for_every_kind() -> None:
    page = (Path(__file__).parents[1] / "docs/plugin-api.md").read_text()
    assert [kind for kind in HOOK_OF_KIND if f"`engine.{kind}`" not in page] == []
