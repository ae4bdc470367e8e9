"""`engine plugins new` writes projects that work, and `engine plugins check` says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.hookspecs import HOOK_OF_KIND
from engine_cli.plugin_templates import TEMPLATES

Engine = Callable[..., Any]


@pytest.fixture
def project(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], Path]]:
    """Write a project and put it where an editable install would."""

    def write(kind: str, name: str) -> Path:
        folder = tmp_path / name
        outcome = engine("plugins", "new", kind, name, "--output", str(folder))
        assert outcome.code == 0, outcome.err
        plain = name.replace("-", "_")
        metadata = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = folder / f"engine_{plain}-{metadata['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {metadata['name']}\nVersion: {metadata['version']}\n"
        )
        lines = [
            f"[{group}]\n{key} = {value}\n"
            for group, entries in metadata["entry-points"].items()
            for key, value in entries.items()
        ]
        (info / "entry_points.txt").write_text("".join(lines))
        monkeypatch.syspath_prepend(folder)
        return folder

    yield write
    for module in [m for m in sys.modules if m.startswith("engine_fresh_")]:
        del sys.modules[module]


@pytest.mark.parametrize("kind", sorted(TEMPLATES))
def test_a_new_project_of_each_kind_passes_the_quick_checks(
    engine: Engine, project: Callable[[str, str], Path], kind: str
) -> None:
    name = f"fresh_{kind}"
    project(kind, name)
    outcome = engine("plugins", "check", f"{kind}/{name}", "--json")
    (result,) = json.loads(outcome.out)
    failed = [check for check in result["checks"] if check["state"] == "failed"]
    assert (outcome.code, result["state"], failed) == (0, "ok", []), result["reason"]
    assert bool(result["checks"]) == bool(TEMPLATES[kind].suite)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cudagraph_modes"])
def test_the_tests_of_a_new_project_pass(
    project: Callable[[str, str], Path], tmp_path: Path, kind: str
) -> None:
    folder = project(kind, "fresh-start")
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


@pytest.mark.slow
def test_a_new_project_can_be_installed(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    engine("plugins", "new", "backend", "Fresh-One", "--output", str(folder))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    target = tmp_path / "site"
    command = [*pip, "--no-build-isolation", "--target", str(target), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    assert (target / "engine_fresh_one" / "plugin.py").is_file()
    (info,) = target.glob("*.dist-info")
    assert "fresh_one = engine_fresh_one" in (info / "entry_points.txt").read_text()


def test_new_projects_are_formatted_and_checked(engine: Engine, tmp_path: Path) -> None:
    for kind in TEMPLATES:
        engine("plugins", "new", kind, f"a_{kind}", "--output", str(tmp_path / kind))
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "E,F,B"], ["format", "--check"]):
        options = ["--isolated", "--line-length", "100", str(tmp_path)]
        run = subprocess.run(
            [*ruff, *command, *options], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compile-mode", "none"], "modular-engine has a compilation mode 'none' already"),
        (["compile-mode", "no name"], "'no name' can't be a plugin's name"),
        (["compile-mode", "class"], "'class' can't be a plugin's name"),
        (["presets", "x"], "no template for presets; there is one for each of attention"),
        (["compile-mood", "x"], "Did you mean 'compile_modes'?"),
    ],
)
def test_what_cannot_be_written_is_said(engine: Engine, arguments: list[str], says: str) -> None:
    outcome = engine("plugins", "new", *arguments)
    assert outcome.code == 2
    assert says in outcome.err


def test_nothing_is_overwritten(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    outcome = engine("plugins", "new", "observer", "seen", "--output", str(tmp_path))
    assert outcome.code == 2
    assert "exists already" in outcome.err
    made = engine("plugins", "new", "observer", "seen", "--output", str(tmp_path / "a"), "--json")
    assert len(json.loads(made.out)["files"]) == 6


def test_templates_are_for_kinds_that_exist() -> None:
    assert TEMPLATES.keys() <= HOOK_OF_KIND.keys()


def test_a_broken_and_a_wrong_plugin_are_found(
    engine: Engine, install: Callable[[str, str, str, str], None]
) -> None:
    install("stranger", "observers", "odd", "raise ImportError('no libmagic here')")
    source = "\n".join(
        [
            "from engine.hookspecs import hookimpl",
            "from engine.strategies import CaptureSizePolicy",
            "ENGINE_API_VERSION = 1",
            "class Wrong(CaptureSizePolicy):",
            "    NAME, SUMMARY, SETTINGS = 'wrong', 'wrong', frozenset({'no_such_setting'})",
            "    def sizes(self, limits): return [1]",
            "@hookimpl",
            "def engine_register_capture_sizes(): return Wrong",
        ]
    )
    install("another", "capture_sizes", "wrong", source)
    broken = engine("plugins", "check", "odd")
    assert broken.code == 2
    assert "observers/odd: broken: cannot load observer 'odd'" in broken.out
    wrong = engine("plugins", "check", "--kind", "capture_sizes")
    assert wrong.code == 2
    assert "capture_sizes/default: ok" in wrong.out
    assert "the_settings_that_it_reads_exist" in wrong.out
    assert "SETTINGS names no_such_setting" in wrong.out
