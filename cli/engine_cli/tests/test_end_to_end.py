"""The commands with a real model: tiny, random, on the CPU."""

from __future__ import annotations

import io
import json
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.testing.tiny import write_tiny_model

Engine = Callable[..., Any]
SCRIPT = "import sys; from engine_cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_tiny_model(folder, seed=random.randrange(1000))


def test_generate_prints_the_text_on_standard_output_and_the_rest_beside_it(
    engine: Engine, model: Path
) -> None:
    arguments = ("generate", "abc", "-m", str(model), "--max-tokens", "6", "--temperature", "0")
    shown = engine(*arguments, "--enforce-eager")
    assert shown.code == 0
    head, *table = shown.err.splitlines()
    assert head.split() == ["setting", "requested", "effective", "decided", "by", "reason"]
    rows = {line.split()[0]: line for line in table}
    assert "--enforce-eager" in rows["mode"]
    assert " -m " in rows["model"]
    assert "load:" in rows
    # Greedy decoding repeats itself, and --quiet changes only what is shown.
    quiet = engine(*arguments, "--quiet")
    assert (quiet.out, quiet.err) == (shown.out, "")


def test_generate_takes_many_prompts_and_completions(
    engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    outcome = engine(
        "generate", "-m", str(model), "-q", "--n", "2", "--request-seed", "5",
        "--max-tokens", "3", "first", "-", "--json",
    )  # fmt: skip
    assert outcome.code == 0
    results = [json.loads(line) for line in outcome.out.splitlines()]
    assert [result["prompt"] for result in results] == ["first", "from a pipe"]
    for result in results:
        assert [len(output["token_ids"]) for output in result["outputs"]] == [3, 3]
        assert result["outputs"][0]["token_ids"] != result["outputs"][1]["token_ids"]


def test_generate_says_which_text_belongs_to_which_prompt(engine: Engine, model: Path) -> None:
    arguments = ("-m", str(model), "-q", "--max-tokens", "2", "--temperature", "0")
    texts = [engine("generate", prompt, *arguments).out for prompt in ("one", "two")]
    both = engine("generate", "one", "two", *arguments).out
    assert both == f"== one\n{texts[0]}== two\n{texts[1]}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--max-model-len", "100k"], "longer than the model's context of 256 tokens"),
        (["--dtype", "bfloat17"], "--dtype=bfloat17: must be auto"),
        (["--max-tokens", "300"], "maximum context length is 256 tokens"),
        (["--cudagraph-mode", "full"], "device cpu can't record graphs"),
        (
            ["--backend", "eager", "--backend-options", "x=1"],
            "backend_options.x=1: no such option",
        ),
        (["--backend-options", "x=1"], "backend_options: inductor has no setting 'x'"),
        (["--hf-overrides", "no_such_field=1"], "has no such field"),
        (["--tokenizer", "/nowhere"], "/nowhere"),
        (["--load-format", "gguf"], "gguf"),
    ],
)
def test_bad_input_is_one_sentence_and_2(
    engine: Engine, model: Path, arguments: list[str], says: str
) -> None:
    outcome = engine("generate", "abc", "-q", "-m", str(model), *arguments)
    assert outcome.code == 2
    assert says in outcome.err
    assert outcome.err.startswith("engine: ")
    assert len(outcome.err.splitlines()) == 1
    assert outcome.out == ""


def test_a_missing_or_broken_model_is_one_sentence_and_2(
    engine: Engine, model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        content = file.read_bytes()
        keep = len(content) // 2 if file.suffix == ".safetensors" else len(content)
        (broken / file.name).write_bytes(content[:keep])
    for folder, says in ((tmp_path / "absent", "no such folder or file"), (broken, "safetensors")):
        outcome = engine("generate", "abc", "-q", "-m", str(folder))
        assert outcome.code == 2
        assert says in outcome.err
        assert str(folder) in outcome.err
        assert "Traceback" not in outcome.err


def test_chat_answers_one_question_and_a_conversation(
    engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("chat", str(model), "--max-tokens", "4", "--temperature", "0")
    once = engine(*arguments, "-q", "hi")
    assert once.code == 0
    assert once.err == ""
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n/reset\nhi\n"))
    twice = engine(*arguments)
    assert twice.code == 0
    assert twice.out == once.out * 2


def test_a_question_beyond_the_context_does_not_end_the_conversation(
    engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'x' * 400}\nhi\n"))
    outcome = engine("chat", str(model), "--max-tokens", "4", "--temperature", "0")
    assert outcome.code == 0
    assert "maximum context length" in outcome.err
    alone = engine("chat", str(model), "--max-tokens", "4", "--temperature", "0", "-q", "hi")
    assert outcome.out.endswith(alone.out)


def test_explain_shows_each_source_and_loads_no_weight(
    engine: Engine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "weightless"
    folder.mkdir()
    for file in model.iterdir():
        content = file.read_bytes() if file.suffix != ".safetensors" else b"not weights"
        (folder / file.name).write_bytes(content)
    file = tmp_path / "mine.yaml"
    file.write_text("max-num-seqs: 3\ncompilation_mode: none\n")
    monkeypatch.setenv("ENGINE_DTYPE", "bfloat16")
    outcome = engine("explain", str(folder), "--config", str(file), "--seed", "9", "--json")
    assert outcome.code == 0
    records = {record["setting"]: record for record in json.loads(outcome.out)["settings"]}
    decided = {name: record["decided_by"] for name, record in records.items()}
    assert decided["seed"] == "--seed"
    assert decided["dtype"] == "ENGINE_DTYPE"
    assert decided["max_num_seqs"] == "mine.yaml"
    assert decided["compilation_config.mode"] == "mine.yaml"
    assert records["dtype"]["effective"] == "bfloat16"
    table = engine("explain", str(folder), "--config", str(file), "--seed", "9").out
    assert re.search(r"^dtype +bfloat16 +bfloat16 +ENGINE_DTYPE", table, re.M)
    assert "max_model_len" not in table
    assert "max_model_len" in engine("explain", str(folder), "--verbose").out


@pytest.fixture
def server(model: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A real `engine serve`, its address, and what it wrote while it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "serve", str(model), "--port", "0", "--enforce-eager"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("ready "):
            break
    else:
        pytest.fail(f"the server ended: {''.join(lines)}")
    yield process, lines[-1].split()[1], lines
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_serve_shows_the_settings_answers_and_ends_with_0_on_an_interrupt(
    engine: Engine,
    model: Path,
    server: tuple[subprocess.Popen[str], str, list[str]],
) -> None:
    process, url, lines = server
    assert any(line.startswith("mode ") and "--enforce-eager" in line for line in lines)
    there = engine("chat", "--url", url, "-q", "hi", "--max-tokens", "4", "--temperature", "0")
    here = engine("chat", str(model), "-q", "hi", "--max-tokens", "4", "--temperature", "0")
    assert (there.code, there.out) == (0, here.out)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in rest


def test_a_port_in_use_is_one_sentence_and_2(engine: Engine, model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = engine("serve", str(model), "--port", str(port))
    assert outcome.code == 2
    assert outcome.err.startswith(f"engine: port={port}: already in use")
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["generate", "serve"])
@pytest.mark.parametrize(
    ("source", "traceback"),
    [("raise ImportError('no libmagic here')", True), ("ENGINE_API_VERSION = 99", False)],
)
def test_a_broken_plugin_that_was_selected_ends_with_its_own_traceback_and_2(
    engine: Engine,
    model: Path,
    install: Callable[..., None],
    command: str,
    source: str,
    traceback: bool,
) -> None:
    install("stranger", "attention", "odd", source)
    arguments = ["abc", "-m", str(model)] if command == "generate" else [str(model), "--port", "0"]
    outcome = engine(command, *arguments, "--attention", "odd")
    assert outcome.code == 2
    assert ("stranger_module.py" in outcome.err) == traceback
    assert ("Traceback" in outcome.err) == traceback
    assert "stranger" in outcome.err.splitlines()[-1]
    # Nobody who didn't ask for it is disturbed.
    assert engine("explain", str(model)).code == 0
