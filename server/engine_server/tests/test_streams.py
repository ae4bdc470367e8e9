"""What goes over the wire in a stream, byte for byte."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

TRICKY = 'a"\\\n\r\u2028\u2029\x85é😀'


def events(data: bytes) -> list[bytes]:
    """Split a stream into its events' data, checking the framing."""
    assert data.endswith(b"\n\n")
    found = []
    for frame in data.removesuffix(b"\n\n").split(b"\n\n"):
        assert frame.startswith(b"data: ")
        assert b"\n" not in frame
        assert b"\r" not in frame
        found.append(frame.removeprefix(b"data: "))
    return found


def test_a_completion_stream_is_exactly_this(start_server: Any) -> None:
    server = start_server(text="Hé")
    body = {"prompt": "abc", "stream": True, "stream_options": {"include_usage": True}}
    response = server.client.post("/v1/completions", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    first = json.loads(events(response.content)[0])
    head = (
        f'data: {{"id":"{first["id"]}","object":"text_completion","created":{first["created"]},'
        f'"model":"scripted","system_fingerprint":"{first["system_fingerprint"]}","choices":'
    )
    assert re.fullmatch("cmpl-[0-9a-f]{32}", first["id"])
    expected = (
        head
        + '[{"index":0,"text":"H","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
        # The first byte of é has no text yet, so it makes no chunk.
        + head
        + '[{"index":0,"text":"é","logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null}],"usage":null}\n\n'
        + head
        + '[],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,'
        '"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        "data: [DONE]\n\n"
    )
    assert response.content.decode() == expected


def test_a_chat_stream_is_exactly_this(start_server: Any) -> None:
    server = start_server(text="Hi")
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    response = server.client.post("/v1/chat/completions", json=body)
    first = json.loads(events(response.content)[0])
    head = (
        f'data: {{"id":"{first["id"]}","object":"chat.completion.chunk",'
        f'"created":{first["created"]},"model":"scripted",'
        f'"system_fingerprint":"{first["system_fingerprint"]}","choices":[{{"index":0,"delta":'
    )
    assert response.content.decode() == (
        head
        + '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        + head
        + '{"content":"H"},"logprobs":null,"finish_reason":null}]}\n\n'
        + head
        + '{"content":"i"},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n'
        "data: [DONE]\n\n"
    )


@pytest.mark.parametrize("asked", [{}, {"logprobs": 1}])
def test_no_text_can_break_an_event(start_server: Any, asked: dict[str, Any]) -> None:
    server = start_server(text=TRICKY)
    body = {"prompt": TRICKY, "stream": True, "max_tokens": 99, "echo": True, **asked}
    content = server.client.post("/v1/completions", json=body).content
    lines = [line for line in content.decode().splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    texts = [json.loads(e)["choices"][0]["text"] for e in events(content)[:-1]]
    assert "".join(texts) == TRICKY * 2


def test_an_error_in_a_stream_is_an_event_and_the_stream_ends(start_server: Any) -> None:
    server = start_server(text="abcdef", fail_at=2)
    body = {"prompt": "abc", "stream": True}
    *chunks, error, done = events(server.client.post("/v1/completions", json=body).content)
    assert "".join(json.loads(c)["choices"][0]["text"] for c in chunks) == "ab"
    assert json.loads(error) == {
        "error": {
            "message": "the step failed: out of luck",
            "type": "server_error",
            "param": None,
            "code": "internal_error",
        }
    }
    assert done == b"[DONE]"
    server.wait(lambda: server.engine.free_blocks == 1000)


def test_an_error_before_the_first_token_is_an_ordinary_answer(start_server: Any) -> None:
    server = start_server(fail_at=0)
    for stream in (False, True):
        response = server.client.post("/v1/completions", json={"prompt": "a", "stream": stream})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "the step failed: out of luck"


def test_the_engine_dying_ends_a_stream_with_an_error_event(start_server: Any) -> None:
    server = start_server(text="abcdef", pause_after=2)
    content = b""
    body = {"prompt": "abc", "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        for piece in response.iter_raw():
            content += piece
            if b'"b"' in content and server.engine.alive:
                server.call(server.engine.die)
    assert response.status_code == 200
    *_, error, done = events(content)
    assert json.loads(error)["error"]["code"] == "engine_dead"
    assert done == b"[DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_dying_before_the_first_token_is_a_503(start_server: Any, stream: bool) -> None:
    server = start_server(hold=True)
    body = {"prompt": "a", "stream": stream}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.client.post, "/v1/completions", json=body)
        server.wait(lambda: len(server.engine.live) == 1)
        server.call(server.engine.die)
        response = waiting.result(10)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"
    assert "Retry-After" in response.headers
