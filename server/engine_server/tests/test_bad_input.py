"""Whatever is sent, the answer is in OpenAI's error shape, names the field, and is never a 5xx."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_server.chat_request import ChatCompletionRequest
from engine_server.completion_request import CompletionRequest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "abc"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
JSON = {"Content-Type": "application/json"}


def check_error(response: Any, status: int | None = None) -> dict[str, Any]:
    """Return the error, after checking that it has the one shape."""
    if status is not None:
        assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert len(error["message"]) < 1000
    return error


def still_serves(server: Any) -> None:
    assert server.client.post(COMPLETIONS, json=GOOD[COMPLETIONS]).status_code == 200


WRONG = [
    ("temperature", "5", "must be a number"),
    ("temperature", -1, "from 0 to 100"),
    ("temperature", True, "must be a number"),
    ("top_p", 0, "more than 0 and at most 1"),
    ("top_p", 1.5, "more than 0 and at most 1"),
    ("max_tokens", "5", "must be an integer"),
    ("max_tokens", 5.5, "must be an integer"),
    ("max_tokens", -1, "0 or more"),
    ("max_tokens", 10**30, "less than"),
    ("min_tokens", 17, "min_tokens"),
    ("n", 0, "from 1 to 128"),
    ("n", 129, "from 1 to 128"),
    ("seed", 2**64, "less than"),
    ("top_k", -2, "-1, 0 (both: off) or more"),
    ("min_p", 2, "from 0 to 1"),
    ("repetition_penalty", 0, "more than 0"),
    ("presence_penalty", 3, "from -2 to 2"),
    ("frequency_penalty", -3, "from -2 to 2"),
    ("logit_bias", {"x": 1}, "integer"),
    ("logit_bias", {"5": 101}, "from -100 to 100"),
    ("logit_bias", {"300": 1}, "vocabulary"),
    ("logit_bias", [], "must be an object"),
    ("stop", 5, "must be a string or an array of strings"),
    ("stop", [""], "non-empty"),
    ("stop", ["a", 5], "must be a string"),
    ("stop_token_ids", [-1], "token ids"),
    ("stop_token_ids", [300], "vocabulary"),
    ("stream", "yes", "must be true or false"),
    ("stream_options", {"include_usage": True}, "only allowed when stream is true"),
    ("ignore_eos", 1, "must be true or false"),
    ("prompt_logprobs", 21, "from 0 to 20"),
    ("response_format", {"type": "yaml"}, "json_object or json_schema"),
    ("response_format", {"type": []}, "json_object or json_schema"),
    ("structured_outputs", {}, "exactly one of"),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}, "exactly one of"),
    ("guided_choice", [], "1 to"),
    ("priority", 1, "in the order in which they come"),
    ("model", 5, "must be a string"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_wrong_value_is_refused_by_name(
    server: Any, path: str, name: str, value: Any, words: str
) -> None:
    body = {"max_tokens": 16, **GOOD[path], name: value}
    error = check_error(server.client.post(path, json=body), 400)
    assert error["param"].startswith(name)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    still_serves(server)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", "is required"),
        ({"prompt": None}, "prompt", "must be a string, an array of strings"),
        ({"prompt": ""}, "prompt", "must not be empty"),
        ({"prompt": []}, "prompt", "must be a string, an array of strings"),
        ({"prompt": [[]]}, "prompt", "must not be empty"),
        ({"prompt": [1, "a"]}, "prompt[1]", "must be an integer"),
        ({"prompt": ["a", 1]}, "prompt[1]", "must be a string"),
        ({"prompt": [[1], [2.5]]}, "prompt[1][0]", "must be an integer"),
        ({"prompt": [300]}, "prompt", "out of the vocabulary"),
        ({"prompt": [-1]}, "prompt", "out of the vocabulary"),
        ({"prompt": {"a": 1}}, "prompt", "must be a string, an array of strings"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "isn't supported"),
        ({"prompt": "a", "best_of": 2}, "best_of", "must equal n (1)"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "must be an integer"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt": "a", "echo": "yes"}, "echo", "must be true or false"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
    ],
)
def test_a_wrong_completion_request_is_refused_by_name(
    server: Any, body: dict[str, Any], param: str, words: str
) -> None:
    error = check_error(server.client.post(COMPLETIONS, json=body), 400)
    assert error["param"] == param
    assert words in error["message"]
    still_serves(server)


TOOL = {"type": "function", "function": {"name": "f"}}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "messages", "is required"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": "hi"}, "messages", "must be an array"),
        ({"messages": ["hi"]}, "messages[0]", "must be an object"),
        (message(role="robot"), "messages[0].role", "'user'"),
        (message(role="tool"), "messages[0].tool_call_id", "is required"),
        (message(content=None), "messages[0].content", "is required"),
        (message(content=5), "messages[0].content", "must be a string or an array"),
        (message(content=[{"type": "image_url"}]), "messages[0].content[0].type", "'text'"),
        (message(content=[{"type": "text"}]), "messages[0].content[0].text", "is required"),
        (message(tool_calls=[TOOL]), "messages[0].tool_calls[0].id", "is required"),
        (message(tool_call_id="x"), "messages[0].tool_call_id", "in a tool's message"),
        (message(mood="x"), "messages[0].mood", "no such parameter"),
        ({**message(), "tools": [TOOL]}, "tools", "--tool-call-parser"),
        ({**message(), "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({**message(), "reasoning_effort": "low"}, "reasoning_effort", "doesn't read it"),
        ({**message(), "modalities": ["audio"]}, "modalities", "only text"),
        ({**message(), "logprobs": 5}, "logprobs", "must be true or false"),
        ({**message(), "logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({**message(), "top_logprobs": 2}, "top_logprobs", "when logprobs is true"),
        ({**message(), "max_completion_tokens": -1}, "max_completion_tokens", "0 or more"),
        (
            {**message(), "max_tokens": 1, "max_completion_tokens": 2},
            "max_tokens",
            "contradicts max_completion_tokens",
        ),
        (message(role="assistant"), "messages", "the user speaks first"),
        (
            {**message(), "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
            "contradicts",
        ),
        (
            {**message(), "chat_template_kwargs": {"moood": 1}},
            "chat_template_kwargs.moood",
            "it reads mood",
        ),
        (
            {**message(), "chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs.tokenize",
            "doesn't read it",
        ),
        (
            {**message(), "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs.chat_template",
            "doesn't read it",
        ),
    ],
)
def test_a_wrong_chat_request_is_refused_by_name(
    server: Any, body: dict[str, Any], param: str, words: str
) -> None:
    error = check_error(server.client.post(CHAT, json=body), 400)
    assert error["param"] == param
    assert words in error["message"]
    still_serves(server)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_unknown_parameter_is_refused_with_a_suggestion(server: Any, path: str) -> None:
    error = check_error(server.client.post(path, json={**GOOD[path], "temprature": 1}), 400)
    assert error["param"] == "temprature"
    assert error["code"] == "unknown_parameter"
    assert "did you mean 'temperature'" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context_is_refused_in_the_words_that_clients_look_for(
    server: Any, stream: bool
) -> None:
    for path, body, param in (
        (COMPLETIONS, {"prompt": "x" * 600}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 600}, "max_tokens"),
        (CHAT, message(content="x" * 600), "messages"),
        (CHAT, {**message(), "max_completion_tokens": 600}, "max_completion_tokens"),
    ):
        response = server.client.post(path, json={**body, "stream": stream})
        error = check_error(response, 400)
        assert "maximum context length is 512 tokens" in error["message"]
        assert error["param"] == param
        assert error["code"] == "context_length_exceeded"
    still_serves(server)


def test_the_official_client_raises_the_right_errors(server: Any) -> None:
    with server.openai() as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="gpt-9", prompt="a")
        assert missing.value.code == "model_not_found"
        assert "'gpt-9' does not exist" in str(missing.value)
        assert "scripted" in str(missing.value)
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(model="scripted", prompt="a", temperature=-1)
        assert bad.value.param == "temperature"


def test_a_full_queue_is_a_503_that_says_when_to_return(start_server: Any) -> None:
    server = start_server(queue_limit=1)
    for stream in (False, True):
        body = {"prompt": ["a", "b"], "stream": stream}
        response = server.client.post(COMPLETIONS, json=body)
        assert check_error(response, 503)["code"] == "queue_full"
        assert response.headers["retry-after"] == "1"
    # The prompt that was taken before the other was refused is given up again.
    assert server.call(lambda: server.engine.free_blocks) == 1000
    assert 'rejections_total{reason="queue_full"} 2.0' in server.client.get("/metrics").text


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"nothing",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"prompt": "a"} trailing',
        b"\x00" * 100,
    ],
    ids=lambda content: content[:24].decode("latin-1"),
)
def test_a_broken_body_is_refused(server: Any, path: str, content: bytes) -> None:
    check_error(server.client.post(path, content=content, headers=JSON), 400)
    still_serves(server)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_says_it_is_no_json_is_refused(server: Any, kind: str) -> None:
    content = json.dumps(GOOD[COMPLETIONS])
    response = server.client.post(COMPLETIONS, content=content, headers={"Content-Type": kind})
    assert "must be application/json" in check_error(response, 400)["message"]


def test_a_body_over_the_limit_is_refused(start_server: Any) -> None:
    server = start_server(config={"max_body_size": 1000})
    response = server.client.post(COMPLETIONS, json={"prompt": "x" * 2000})
    assert "1000 bytes" in check_error(response, 413)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/images/generations", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/%00%ff/..%2f", 404),
        ("GET", COMPLETIONS, 405),
        ("PUT", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
def test_a_wrong_path_or_method_has_the_same_shape(
    server: Any, method: str, path: str, status: int
) -> None:
    check_error(server.client.request(method, path), status)


def test_a_fault_of_the_server_has_the_same_shape_and_is_logged(
    server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server.engine, "submit", broken)
    error = check_error(server.client.post(COMPLETIONS, json=GOOD[COMPLETIONS]), 500)
    assert error["type"] == "server_error"
    # uvicorn logs it after the answer has left.
    server.wait(lambda: "ZeroDivisionError" in caplog.text)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, math.inf, "user", "text", "scripted", "x" * 600])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["role", "content", "type", "text", "1"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
names = sorted({*CompletionRequest.model_fields, *ChatCompletionRequest.model_fields})


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_no_body_makes_the_server_fail(server: Any, path: str) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        body=st.dictionaries(st.sampled_from(names) | st.text(max_size=6), values, max_size=4),
        valid=st.booleans(),
    )
    def holds(body: dict[str, Any], valid: bool) -> None:
        body = {**GOOD.get(path, {}), **body} if valid else body
        data = json.dumps(body).encode("utf-8", "surrogatepass")
        response = server.client.post(path, content=data, headers=JSON)
        if response.status_code != 200:
            assert response.status_code in (400, 404), response.text
            check_error(response)

    holds()
    still_serves(server)
    server.wait(lambda: server.engine.free_blocks == 1000)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=60))
def test_no_bytes_make_the_server_fail(server: Any, data: bytes) -> None:
    check_error(server.client.post(CHAT, content=data, headers=JSON), 400)
