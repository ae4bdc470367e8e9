"""Fixtures for all test folders."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.testing.distributions import PluginMaker


def pytest_configure() -> None:
    """Collect without the garbage collector.

    CPython 3.11's parser fails with a SystemError when a garbage collection with a Python callback
    (hypothesis has one) happens inside it, and pytest parses every test module that it collects.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again while tests run."""
    gc.enable()


@pytest.fixture
def make_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginMaker]:
    """Install throw-away plugins for the length of one test."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    maker = PluginMaker(folder)
    yield maker
    for module in maker.modules:
        sys.modules.pop(module, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
