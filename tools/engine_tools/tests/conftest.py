"""What the tests of the tools share: a tiny model, faulty plugins, settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import CompilationConfig, EngineConfig, Settings
from engine.plugin_files import VARIABLE
from engine.settings import as_settings
from engine.testing.tiny import write_tiny_model

FAULTS = Path(__file__).with_name("faults.py")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the faulty plugins for one test."""
    monkeypatch.setenv(VARIABLE, str(FAULTS))
    return FAULTS


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Callable[..., Settings]:
    """Return settings of a small engine, for modes given by keyword."""

    def made(
        mode: str = "none", graphs: str = "none", backend: str = "eager", **more: Any
    ) -> Settings:
        compilation = CompilationConfig(mode=mode, cudagraph_mode=graphs, backend=backend, **more)
        config = EngineConfig(
            model=str(tiny_model),
            device="cpu",
            graph_device="simulated" if graphs != "none" else "auto",
            dtype="float32",
            max_num_seqs=4,
            num_kv_blocks=200,
            max_num_batched_tokens=32,
            threads=1,
            compilation_config=compilation,
        )
        return as_settings(config)

    return made
