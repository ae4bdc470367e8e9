"""A plugin that doesn't fit is told before anything selects it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from engine import EngineConfig
from engine.plugin_files import VARIABLE
from engine.settings import as_settings
from engine_tools.doctor import Finding, Level, Subject, examine
from engine_tools.doctor.plugins import check_plugins


def of_tiny_model(model: Path) -> Subject:
    return Subject(as_settings(EngineConfig(model=str(model))))


def worst(findings: Iterable[Finding], level: Level, says: str) -> bool:
    """Say whether there is one finding, of this level, that says so."""
    [found] = findings
    return found.level is level and says in found.what


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a distribution with one plugin for the time of a test."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def add(group: str, name: str, source: str, needs: str = "") -> None:
        modules.append(f"stranger_{name}")
        (tmp_path / f"stranger_{name}.py").write_text(source)
        info = tmp_path / f"stranger_{name}-1.0.dist-info"
        info.mkdir()
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: stranger-{name}\nVersion: 1.0\n{requires}"
        )
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = stranger_{name}\n")

    yield add
    for module in modules:
        sys.modules.pop(module, None)


SOUND = "ENGINE_API_VERSION = 1\n"


@pytest.mark.parametrize(
    ("group", "name", "source", "needs", "level", "says"),
    [
        ("engine.backends", "sound", SOUND, "", Level.OK, "none is broken"),
        ("engine.backends", "bad", "import absent_thing", "", Level.ERROR, "absent_thing"),
        ("engine.backends", "leaves", "raise SystemExit(3)", "", Level.ERROR, "SystemExit: 3"),
        ("engine.backends", "silent", "", "", Level.ERROR, "ENGINE_API_VERSION"),
        ("engine.backends", "new", "ENGINE_API_VERSION = 99", "", Level.ERROR, "API 99"),
        ("engine.backend", "astray", SOUND, "", Level.ERROR, "engine.backend, none of ours"),
        ("engine.backends", "eager", SOUND, "", Level.WARNING, "'eager' is claimed by"),
        ("engine.backends", "hungry", SOUND, "torch>=999", Level.ERROR, "torch>=999 is needed"),
    ],
)
def test_plugins_that_do_not_fit_are_told(
    tiny_model: Path,
    install: Callable[..., None],
    group: str,
    name: str,
    source: str,
    needs: str,
    level: Level,
    says: str,
) -> None:
    install(group, name, source, needs)
    assert worst(check_plugins(of_tiny_model(tiny_model)), level, says)


def test_a_plugin_file_that_raises_is_an_error(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text("raise RuntimeError('planted')")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "raises.py"))
    assert worst(examine(of_tiny_model(tiny_model), [check_plugins]), Level.ERROR, "planted")
