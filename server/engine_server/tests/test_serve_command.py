"""`engine serve` as a user starts and ends it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.testing.tiny import write_tiny_model

COMMAND = [sys.executable, "-c", "import sys, engine_cli.main as m; sys.exit(m.main())", "serve"]
QUICK = ["-O0", "--threads", "1", "--num-kv-blocks", "200", "--port", "0"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", max_model_len=4096)


@contextmanager
def serving(model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Start the server; yields the process, its address and what it said until then."""
    process = subprocess.Popen(
        [*COMMAND, str(model), *QUICK, *options], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.match(r"ready (http://\S+) in ", line):
                yield process, found[1], said
                return
        raise AssertionError("".join(said))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def engine_of(pid: int) -> int:
    """Return the engine process of a server."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (engine,) = (c for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes())
    return int(engine)


def ask(url: str, **body: Any) -> httpx.Response:
    with httpx.Client(base_url=url, timeout=30) as client:
        return client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3, **body})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_exit_code_0_and_no_traceback(model: Path, number: int) -> None:
    with serving(model) as (process, url, said):
        answer = ask(url).json()
        assert answer["model"] == "tiny"
        assert answer["usage"]["completion_tokens"] <= 3
        assert any(re.match(r"\W*cudagraph_mode\b", line) for line in said), said
        engine = engine_of(process.pid)
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in "".join(said) + process.stderr.read()
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)


def test_it_ends_with_1_when_the_engine_process_is_killed(model: Path) -> None:
    with serving(model) as (process, url, _):
        engine = engine_of(process.pid)
        body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True, "n": 8}
        received = ""
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
            for text in response.iter_text():
                if not received:
                    os.kill(engine, signal.SIGKILL)
                received += text
        *_, error, done = received.removesuffix("\n\n").split("\n\n")
        assert '"code":"engine_dead"' in error
        assert done == "data: [DONE]"
        assert process.wait(20) == 1


def test_a_missing_model_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = run(str(tmp_path / "nothing"), "--port", "0")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "nothing") in done.stderr


def test_a_port_in_use_is_one_sentence_and_exit_code_2(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        begun = time.monotonic()
        done = run(str(model), "--port", port)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert f"port={port}: already in use" in line
        assert "--port" in line
    assert time.monotonic() - begun < 10


def test_a_context_longer_than_the_models_is_one_sentence_and_exit_code_2(model: Path) -> None:
    done = run(str(model), "--port", "0", "--max-model-len", "9999")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "max_model_len=9999 (--max-model-len)" in done.stderr
