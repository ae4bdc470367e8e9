"""What the tests of the command line share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_cli.main import main
from engine_cli.settings_command import SettingsCommand
from engine_cli.sources import Sources
from engine_cli.state import State


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ENGINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def engine(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command line in this process."""

    def run(*args: str) -> Outcome:
        capsys.readouterr()
        code = main(args)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def sources() -> Callable[..., Sources]:
    """Parse arguments as `serve`, `generate` and `chat` do, and return what was said."""

    def parse(*args: str, **options: Any) -> Sources:
        seen: list[Sources] = []
        command = SettingsCommand("probe", callback=lambda sources: seen.append(sources), **options)
        command.main(list(args), standalone_mode=False, obj=State())
        return seen[0]

    return parse


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str, str, str], None]]:
    """Install a distribution with one plugin for the time of a test."""
    monkeypatch.syspath_prepend(tmp_path)
    modules: list[str] = []

    def add(distribution: str, group: str, name: str, source: str) -> None:
        module = f"{distribution.replace('-', '_')}_module"
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        )
        (info / "entry_points.txt").write_text(f"[engine.{group}]\n{name} = {module}\n")

    yield add
    for module in modules:
        sys.modules.pop(module, None)
