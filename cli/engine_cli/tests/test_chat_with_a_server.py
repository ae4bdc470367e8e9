"""`engine chat --url` speaks the streaming chat protocol to a real HTTP server."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Engine = Callable[..., Any]


class Server(ThreadingHTTPServer):
    """Answers with what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.pieces: list[str] = []
        self.refusal: tuple[int, str] | None = None
        self.breaks_with = ""
        self.path = "/v1/chat/completions"
        self.piece: Callable[[str], dict[str, Any]] = lambda text: {"delta": {"content": text}}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self.server.keys.append(self.headers.get("Authorization"))
        self._send(200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))

    def do_POST(self) -> None:
        assert self.path == self.server.path
        length = int(self.headers["Content-Length"])
        self.server.asked.append(json.loads(self.rfile.read(length)))
        if self.server.refusal is not None:
            self._send(*self.server.refusal)
            return
        chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant"}}]}]
        chunks += [{"choices": [self.server.piece(piece)]} for piece in self.server.pieces]
        if self.server.breaks_with:
            chunks.append({"error": {"message": self.server.breaks_with}})
        chunks += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"choices": []}]
        frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self._send(200, ": hello\n\n" + "".join(frames) + "data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        server.pieces = [secrets.token_hex(3) for _ in range(3)]
        yield server
        server.shutdown()
        thread.join()


def test_one_question_prints_the_answer_and_nothing_else(engine: Engine, server: Server) -> None:
    outcome = engine("chat", "--url", server.url, "-q", "hi", "--system", "be brief")
    assert outcome.code == 0
    assert outcome.out == "".join(server.pieces) + "\n"
    assert outcome.err == ""
    (asked,) = server.asked
    assert asked == {
        "model": "first",
        "stream": True,
        "max_tokens": None,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
        ],
    }


def test_sampling_model_and_key_are_sent(engine: Engine, server: Server) -> None:
    outcome = engine(
        "chat", "second", "--url", f"{server.url}/v1/", "-q", "hi", "--api-key", "secret",
        "--temperature", "0.5", "--max-tokens", "16", "--request-seed", "3", "--stop", "a",
        "--stop", "b", "--logit-bias", "5=-1.5", "--ignore-eos",
    )  # fmt: skip
    assert outcome.code == 0
    (asked,) = server.asked
    del asked["messages"], asked["stream"]
    assert asked == {
        "model": "second",
        "temperature": 0.5,
        "max_tokens": 16,
        "seed": 3,
        "stop": ["a", "b"],
        "logit_bias": {"5": -1.5},
        "ignore_eos": True,
    }


def test_a_conversation_remembers_and_forgets(
    engine: Engine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["hi", "  ", "/what", "more", "/reset", "again"])

    def read(_prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setenv("ENGINE_API_KEY", "k")
    outcome = engine("chat", "--url", server.url)
    assert outcome.code == 0
    assert outcome.out == ("".join(server.pieces) + "\n") * 3
    assert "unknown command '/what'" in outcome.err
    said = [[m["content"] for m in asked["messages"]] for asked in server.asked]
    answer = "".join(server.pieces)
    assert said == [["hi"], ["hi", answer, "more"], ["again"]]
    assert server.keys == ["Bearer k"]


def test_the_servers_own_sentence_is_shown(engine: Engine, server: Server) -> None:
    server.refusal = (404, json.dumps({"error": {"message": "no model 'x'; has 'first'"}}))
    outcome = engine("chat", "x", "--url", server.url, "-q", "hi")
    assert outcome.code == 2
    assert "404: no model 'x'; has 'first'" in outcome.err
    server.refusal = (502, "bad gateway")
    assert "502: bad gateway" in engine("chat", "--url", server.url, "-q", "hi").err


def test_an_error_in_the_stream_is_told(engine: Engine, server: Server) -> None:
    server.breaks_with = "the engine process is gone"
    outcome = engine("chat", "--url", server.url, "-q", "hi")
    assert outcome.code == 2
    assert "the engine process is gone" in outcome.err


def test_a_server_that_is_not_there_is_a_sentence(engine: Engine) -> None:
    outcome = engine("chat", "--url", "127.0.0.1:9", "-q", "hi")
    assert outcome.code == 2
    assert "--url=127.0.0.1:9" in outcome.err
    assert "is a server running there?" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_setting_that_can_not_reach_the_server_is_refused(
    engine: Engine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = engine("chat", "--url", server.url, "-q", "hi", "--dtype", "float32")
    assert outcome.code == 2
    assert "--dtype has no effect with --url" in outcome.err
    # What the environment says is about engines that are started here.
    monkeypatch.setenv("ENGINE_DTYPE", "float32")
    monkeypatch.setenv("ENGINE_MODEL", "/some/folder")
    assert engine("chat", "--url", server.url, "-q", "hi").code == 0
    assert server.asked[-1]["model"] == "first"
