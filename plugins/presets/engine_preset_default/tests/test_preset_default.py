"""Preset `default`: each level leads to a running engine on any machine."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.facts import DeviceFacts, ModelFacts
from engine.registry import Registry
from engine.resolution import Resolution, resolve
from engine.settings import as_settings
from engine_preset_default.preset import DefaultPreset

MODEL = ModelFacts("LlamaForCausalLM", "bfloat16", 2048, num_layers=2, hidden_size=64)
# The plainest engine: what is left when every optional plugin is taken out.
PLAIN = {"compile_modes": "none", "cudagraph_modes": "none", "backends": "eager"}


def resolved(level: int, registry: Registry) -> Resolution:
    settings = as_settings(EngineConfig(optimization_level=level))
    return resolve(settings, DeviceFacts("cpu"), MODEL, registry)


@pytest.mark.parametrize("level", range(4))
def test_each_level_exists_and_says_what_it_is(level: int) -> None:
    assert set(DefaultPreset.LEVELS) == set(range(4))
    assert DefaultPreset.LEVELS[level].summary


@pytest.mark.parametrize("level", range(4))
def test_each_level_resolves_with_the_plain_plugins_alone(level: int) -> None:
    everything = Registry()
    optional = [
        f"{kind}/{name}"
        for kind, plain in PLAIN.items()
        for name in everything.names(kind)
        if name != plain
    ]
    compilation = resolved(level, Registry(blocked=optional)).config.compilation_config
    assert compilation.mode == PLAIN["compile_modes"]
    assert compilation.cudagraph_mode == PLAIN["cudagraph_modes"]
    assert compilation.backend == PLAIN["backends"]


@pytest.mark.parametrize("level", range(4))
def test_each_level_resolves_with_what_is_installed(level: int) -> None:
    resolution = resolved(level, Registry())
    chosen = resolution["compilation_config.mode"].effective
    assert chosen in DefaultPreset.LEVELS[level].compile_modes


def test_what_a_level_passes_over_is_said_in_its_record() -> None:
    level = DefaultPreset.LEVELS[2]
    wanted = level.compile_modes[0]
    registry = Registry(blocked=[f"compile_modes/{wanted}"])
    record = resolved(2, registry)["compilation_config.mode"]
    assert record.degraded
    assert wanted in record.reason


def test_level_0_compiles_and_records_nothing() -> None:
    level = DefaultPreset.LEVELS[0]
    assert level.compile_modes == ("none",)
    assert level.cudagraph_modes == ("none",)


def test_it_is_registered_under_its_name() -> None:
    assert Registry().load("presets", "default") is DefaultPreset
