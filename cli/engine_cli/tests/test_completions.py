"""The scripts complete in the shells that they are for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Engine = Callable[..., Any]

CASES = [
    (["engine", "serve", "--cudagraph-mode", "full_a"], ["full_and_piecewise"]),
    (["engine", "expl"], ["explain"]),
    (["engine", "cache", "ex"], ["explain", "export"]),
    (["engine", "serve", "-m", "x", "--dtype", "b"], ["bfloat16"]),
    (["engine", "plugins", "show", "--ki"], ["--kind"]),
    (["engine", "completions", "fi"], ["fish"]),
    # A word that is a command elsewhere is none here.
    (["engine", "cache", "explain", "--cudag"], []),
    (["engine", "cache", "explain", "--cache"], ["--cache-dir"]),
]


@pytest.fixture
def script(engine: Engine, tmp_path: Path) -> Callable[[str], Path]:
    def write(shell: str) -> Path:
        if shutil.which(shell) is None:
            pytest.skip(f"there is no {shell} here")
        path = tmp_path / f"engine.{shell}"
        path.write_text(engine("completions", shell).out)
        return path

    return write


def ask(*command: str) -> list[str]:
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


_CALL = "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _engine; printf '%s\\n' \"${COMPREPLY[@]}\""


@pytest.mark.parametrize(("words", "expected"), CASES, ids=lambda v: " ".join(v))
def test_bash(script: Callable[[str], Path], words: list[str], expected: list[str]) -> None:
    line = " ".join(words)
    found = ask("bash", "-c", f"source {script('bash')}; COMP_WORDS=({line}); {_CALL}")
    assert {*found} - {""} == set(expected)


@pytest.mark.parametrize(("words", "expected"), CASES, ids=lambda v: " ".join(v))
def test_fish(script: Callable[[str], Path], words: list[str], expected: list[str]) -> None:
    line = " ".join(words)
    found = ask("fish", "-c", f"source {script('fish')}; complete -C '{line}'")
    assert {word.partition("\t")[0] for word in found} == set(expected)


@pytest.mark.parametrize(("words", "expected"), CASES, ids=lambda v: " ".join(v))
def test_zsh(
    script: Callable[[str], Path], tmp_path: Path, words: list[str], expected: list[str]
) -> None:
    setup = f"autoload -U +X compinit && compinit -u -d {tmp_path}/dump; source {script('zsh')}"
    line = " ".join(words)
    found = ask("zsh", "-f", "-c", f"{setup}; emulate sh; COMP_WORDS=({line}); {_CALL}")
    # What doesn't begin with the word is left out by zsh itself.
    assert {word for word in found if word.startswith(words[-1])} == set(expected)


def test_bash_completes_behind_an_equals_sign(script: Callable[[str], Path]) -> None:
    words = "engine serve --dtype = b"  # bash cuts it like this
    found = ask("bash", "-c", f"source {script('bash')}; COMP_WORDS=({words}); {_CALL}")
    assert found == ["bfloat16"]


def test_zsh_completes_behind_an_equals_sign(script: Callable[[str], Path], tmp_path: Path) -> None:
    setup = f"autoload -U +X compinit && compinit -u -d {tmp_path}/dump; source {script('zsh')}"
    words = "engine serve --dtype=b"
    found = ask("zsh", "-f", "-c", f"{setup}; emulate sh; COMP_WORDS=({words}); {_CALL}")
    assert "--dtype=bfloat16" in found


def test_fish_offers_files_where_an_argument_is_open(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "mymodel").mkdir()
    line = f"cd {tmp_path}; source {script('fish')}; complete -C 'engine serve my'"
    assert [word.partition("\t")[0] for word in ask("fish", "-c", line)] == ["mymodel/"]


def test_another_shell_is_refused_with_those_there_are(engine: Engine) -> None:
    outcome = engine("completions", "tcsh")
    assert outcome.code == 2
    assert "'bash', 'zsh', 'fish'" in outcome.err


def test_completing_needs_no_program_at_all(script: Callable[[str], Path]) -> None:
    words = "engine serve --backend i"
    line = f"PATH=; source {script('bash')}; COMP_WORDS=({words}); {_CALL}"
    assert ask(str(shutil.which("bash")), "-c", line) == ["inductor"]
