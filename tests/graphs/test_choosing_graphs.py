"""Which graph mode comes out: a default may degrade and says so, an explicit one is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import CompilationConfig, EngineConfig
from engine.errors import ConfigError, ResolutionError
from engine.records import Resolution
from engine.runtime.devices import detect_device, make_graph_device
from engine.runtime.loading import resolve_settings
from engine.settings import Settings

MODE = "compilation_config.cudagraph_mode"


@pytest.fixture
def resolve(tiny_model: Path, recordable: str) -> Any:
    def resolved(graphs: str | None = None, **fields: Any) -> Resolution:
        compilation = CompilationConfig(mode="none", cudagraph_mode=graphs)
        config = EngineConfig(
            model=str(tiny_model), device="cpu", compilation_config=compilation, **fields
        )
        return resolve_settings(Settings(config, {MODE: "--cudagraph-mode"} if graphs else {}))

    return resolved


def test_a_default_without_a_graph_device_is_none_and_says_why(resolve: Any) -> None:
    record = resolve()[MODE]
    assert record.effective == "none"
    assert record.degraded
    assert "can't record graphs" in record.reason
    assert "simulated" in record.remedy


@pytest.mark.parametrize("graphs", ["piecewise", "full", "full_decode_only", "full_and_piecewise"])
def test_an_explicit_mode_without_a_graph_device_is_an_error(resolve: Any, graphs: str) -> None:
    with pytest.raises(ResolutionError, match=r"--cudagraph-mode.*can't record.*simulated"):
        resolve(graphs)


def test_a_default_takes_what_the_attention_allows(resolve: Any) -> None:
    whole = resolve(graph_device="simulated", attention="recordable")[MODE]
    assert whole.effective == "full_and_piecewise"
    assert not whole.degraded
    pieces = resolve(graph_device="simulated", attention="sdpa")[MODE]
    assert pieces.effective == "piecewise"
    assert "sdpa can't be inside a recorded graph" in pieces.reason


@pytest.mark.parametrize("graphs", ["full", "full_decode_only", "full_and_piecewise"])
def test_an_explicit_mode_that_the_attention_forbids_is_an_error(resolve: Any, graphs: str) -> None:
    with pytest.raises(ResolutionError, match=r"sdpa can't be inside a recorded graph \(never\)"):
        resolve(graphs, graph_device="simulated", attention="sdpa")
    degraded = resolve(graphs, graph_device="simulated", attention="sdpa", on_downgrade="warn")
    assert degraded[MODE].effective == "piecewise"


@pytest.mark.parametrize("name", ["cuda", "roman_candle"])
def test_a_graph_device_that_isnt_here_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"graph_device='{name}'"):
        detect_device("cpu", name)


def test_graph_devices_by_name() -> None:
    assert detect_device("cpu").graph_device is None
    assert detect_device("cpu", "simulated").graph_device == "simulated"
    assert make_graph_device(None) is None
    made = make_graph_device("simulated")
    assert made is not None
    assert made.name == "simulated"
    with pytest.raises(ConfigError, match="choose auto, cuda or simulated"):
        make_graph_device("roman_candle")
