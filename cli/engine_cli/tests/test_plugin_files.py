"""`--plugin FILE.py`: an idea is tried without packaging, in this process and the engine's own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.names import CompilationMode
from engine.plugin_files import VARIABLE
from engine.testing.tiny import write_tiny_model

Engine = Callable[..., Any]

FILE = """
from engine.hookspecs import hookimpl
ENGINE_API_VERSION = 1

@hookimpl
def engine_register_compile_mode():
    from engine.strategies import CompiledModel, CompileReport, CompileStrategy

    class Mine(CompileStrategy):
        NAME = "{name}"
        SUMMARY = "an idea"
        USES_BACKEND = False

        def compile(self, job):
            print("{said}")
            return CompiledModel(job.model, CompileReport(), watchable=True)

    return Mine
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def file(name: str, folder: str = "", said: str = "compiled by a file") -> str:
        path = tmp_path / folder / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILE.format(name=name, said=said))
        return str(path)

    return file


def test_a_file_is_listed_shown_and_checked_for_one_run(
    engine: Engine, write: Callable[..., str]
) -> None:
    path = write("mine")
    rows = json.loads(engine("plugins", "--json", "--kind", "compile_modes", "--plugin", path).out)
    (row,) = [row for row in rows if row["name"] == "mine"]
    assert (row["distribution"], row["state"]) == (path, "ok")
    assert "an idea" in engine("plugins", "show", "mine", "--plugin", path).out
    checked = engine("plugins", "check", "mine", "--plugin", path)
    assert checked.code == 0, checked.out
    assert VARIABLE not in os.environ
    assert engine("plugins", "show", "mine").code == 2


def test_a_model_is_run_by_a_file(
    engine: Engine, write: Callable[..., str], tmp_path: Path
) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    arguments = ["--model", model, "--max-tokens", "3", "--temperature", "0", "--quiet"]
    mine = engine(
        "generate", *arguments, "--plugin", write("mine"), "--compilation-mode", "mine", "hi"
    )
    assert mine.code == 0, mine.err
    assert "compiled by a file" in mine.out
    plain = engine("generate", *arguments, "--compilation-mode", "none", "hi")
    assert mine.out.endswith(plain.out)


@pytest.mark.slow
def test_the_engine_process_has_the_file_too(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import AsyncEngine, CompilationConfig, EngineConfig, SamplingParams

    monkeypatch.setenv(VARIABLE, write("mine"))
    model = str(write_tiny_model(tmp_path / "model"))

    async def run() -> list[int]:
        compilation = CompilationConfig(mode=CompilationMode("mine"))
        config = EngineConfig(model=model, device="cpu", compilation_config=compilation)
        served = await AsyncEngine.start(config)
        try:
            params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
            stream = await served.submit("hi", params)
            return [t async for news in stream for o in news.outputs for t in o.token_ids]
        finally:
            await served.close()

    assert len(asyncio.run(run())) == 3


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_files_never_share_a_name_silently(
    engine: Engine, write: Callable[..., str], order: tuple[str, str]
) -> None:
    paths = [write("mine", folder) for folder in order]
    both = ["--plugin", paths[0], "--plugin", paths[1]]
    outcome = engine("plugins", "show", "mine", *both)
    assert outcome.code == 2
    assert "claimed by two distributions" in outcome.err
    assert all(path in outcome.err for path in paths)
    (shown,) = json.loads(engine("plugins", "show", f"{paths[1]}:mine", "--json", *both).out)
    assert shown["file"] == paths[1]
    # The same file twice is one.
    assert engine("plugins", "show", "mine", "--plugin", paths[0], "--plugin", paths[0]).code == 0


def test_a_file_does_not_take_the_place_of_what_is_installed(
    engine: Engine, write: Callable[..., str]
) -> None:
    outcome = engine("plugins", "show", "compile_modes/none", "--plugin", write("none"))
    assert outcome.code == 2
    assert "modular-engine" in outcome.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("raise ImportError('no libmagic here')", "ImportError: no libmagic here"),
        ("x = 1", "implements no hook; define one of engine_register_compile_mode"),
        (FILE.format(name="mine", said="").replace("= 1", "= 99", 1), "plugin API 99"),
        (
            FILE.format(name="mine", said="").replace("return Mine", "raise OSError('no')"),
            "OSError",
        ),
    ],
)
def test_a_bad_file_ends_the_command_with_a_sentence(
    engine: Engine, tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(content)
    outcome = engine("plugins", "show", "mine", "--plugin", str(path))
    assert outcome.code == 2
    assert says in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(("name", "says"), [("no.py", "no such file"), ("dir", "ends in .py")])
def test_what_is_no_file_is_named(engine: Engine, tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "dir").mkdir()
    outcome = engine("plugins", "--plugin", str(tmp_path / name))
    assert outcome.code == 2
    assert says in outcome.err
