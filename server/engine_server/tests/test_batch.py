"""A batch gives what the server gives, line by line, and goes on after an interrupt."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import EngineDeadError
from engine.errors import ConfigError
from engine.testing.scripted_engine import ScriptedEngine
from engine.testing.tiny import write_tiny_model
from engine_server.batch import answer_batch
from engine_server.batch_file import AnswerFile, BatchRequest, read_requests
from engine_server.config import ServerConfig

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "one", "max_tokens": 3, "seed": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "two"}], "max_tokens": 3}),
    ("/v1/completions", {"prompt": "three", "max_tokens": 2, "n": 2, "logprobs": 1}),
    ("/v1/completions", {"prompt": "four", "max_token": 2}),
    ("/v1/completions", {"prompt": "five", "model": "another"}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/embeddings", {"input": "six"}),
    ("/v1/responses", {"input": "seven", "max_output_tokens": 2}),
]
REQUESTS = [BatchRequest(f"r{i}", url, body) for i, (url, body) in enumerate(BODIES)]
# A shell lets what it runs in the background ignore interrupts.
_RUN = """
import signal, sys
from engine_cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
RANDOM = ("id", "created", "created_at", "completed_at")


def plain(value: Any) -> Any:
    """Leave out what differs each time."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in RANDOM}
    return [plain(item) for item in value] if isinstance(value, list) else value


def answered(path: Path, requests: Sequence[BatchRequest], **more: Any) -> dict[str, Any]:
    async def run() -> None:
        await answer_batch(ScriptedEngine(**more), ServerConfig(), requests, answers, at_once=2)

    answers = AnswerFile(path)
    try:
        asyncio.run(run())
    finally:
        answers.close()
    return {line["custom_id"]: line for line in lines(path)}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, requests: Sequence[BatchRequest]) -> Path:
    content = [
        {"custom_id": r.custom_id, "method": "POST", "url": r.url, "body": r.body} for r in requests
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in content))
    return path


def test_each_answer_is_the_servers(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    found = answered(tmp_path / "out.jsonl", REQUESTS)
    server = start_server()
    for request in REQUESTS:
        line = found[request.custom_id]
        assert set(line) == {"id", "custom_id", "response", "error"}
        expected = server.client.post(request.url, json=request.body)
        assert line["response"]["status_code"] == expected.status_code
        assert plain(line["response"]["body"]) == plain(expected.json())
        assert line["response"]["request_id"]
    statuses = [found[request.custom_id]["response"]["status_code"] for request in REQUESTS]
    assert statuses[:6] == [200, 200, 200, 400, 404, 400]


def test_what_is_answered_is_not_answered_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = answered(path, REQUESTS[:2])
    both = answered(path, REQUESTS)
    assert {name: both[name] for name in first} == first
    assert len(lines(path)) == len(REQUESTS)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_was_cut_in_half_is_answered_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    answered(path, REQUESTS[:2])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    found = answered(path, REQUESTS[:2])
    assert len(lines(path)) == len(found) == 2


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not an answer\n")
    with pytest.raises(ConfigError, match=r"notes\.txt: line 1 is no answer of a batch"):
        AnswerFile(path)
    assert path.read_text() == "not an answer\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: is no JSON"),
        ("[]", "line 2: is no JSON object"),
        ('{"url": "/v1/completions", "body": {}}', "line 2: needs a custom_id"),
        (
            '{"custom_id": "a", "url": "/v1/completions", "body": {}}',
            "custom_id 'a' is that of line 1",
        ),
        ('{"custom_id": "b", "url": "/v1/models", "body": {}}', "url '/v1/models' is unknown"),
        ('{"custom_id": "b", "method": "GET", "url": "/v1/models"}', "method must be POST"),
        ('{"custom_id": "b", "url": "/v1/completions"}', "line 2: needs a body"),
        (
            '{"custom_id": "b", "url": "/v1/completions", "body": {"stream": true}}',
            "body.stream must be left out",
        ),
    ],
)
def test_a_bad_line_is_named_before_anything_is_loaded(
    tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"custom_id": "a", "url": "/v1/completions", "body": {{}}}}\n{line}\n')
    with pytest.raises(ConfigError) as refused:
        read_requests(path)
    assert said in str(refused.value)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_requests(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="holds no request"):
        read_requests(tmp_path / "empty")


def test_separators_inside_a_text_cut_no_line(tmp_path: Path) -> None:
    body = {"prompt": "a\u2028b", "max_tokens": 1}
    path = tmp_path / "in.jsonl"
    content = {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body}
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_requests(path)[0].body == body


def test_a_dead_engine_ends_the_batch_and_answers_nothing(tmp_path: Path) -> None:
    answers = AnswerFile(tmp_path / "out.jsonl")
    engine = ScriptedEngine()
    engine.die()

    async def run() -> None:
        await answer_batch(engine, ServerConfig(), REQUESTS[:1], answers, at_once=1)

    with pytest.raises(EngineDeadError):
        asyncio.run(run())
    assert answers.done == set()
    answers.close()


@pytest.mark.slow
def test_an_interrupted_command_goes_on_to_the_same_answers(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    requests = [
        BatchRequest(
            f"r{i}", "/v1/completions", {"prompt": f"{i}", "max_tokens": 100, "temperature": 0}
        )
        for i in range(80)
    ]
    source = write(tmp_path / "in.jsonl", requests)
    cut, whole = tmp_path / "cut.jsonl", tmp_path / "whole.jsonl"

    def start(target: Path, at_once: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _RUN, "run-batch", str(model), "-O0"]
        command += ["--device", "cpu", "--threads", "1", "--at-once", at_once]
        command += ["-i", str(source), "-o", str(target), "--num-kv-blocks", "999"]
        return subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    # One after another takes seconds, of which the interrupt comes in the first.
    process = start(cut, at_once="1")
    deadline = time.monotonic() + 120
    while not (cut.exists() and cut.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "answered; the same command goes on" in said
    assert 3 <= len(lines(cut)) < 80
    for target in (cut, whole):
        process = start(target, at_once="80")
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 0, said
    texts = [
        {line["custom_id"]: plain(line["response"]["body"]) for line in lines(target)}
        for target in (cut, whole)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(lines(cut)) == 80
