"""Answers and chunks hold what OpenAI's own types demand, under their strictest reading."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "hi"}]
ASKED: list[dict[str, Any]] = [
    {},
    {"n": 2, "return_token_ids": True},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]


def check(kind: type[BaseModel], data: Any) -> None:
    kind.model_validate_json(json.dumps(data), strict=True)


def chunks(server: Any, path: str, body: dict[str, Any]) -> list[Any]:
    text = server.client.post(path, json={**body, "stream": True}).text
    *events, done = text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("asked", [*ASKED, {"logprobs": 2}], ids=str)
def test_completions(server: Any, asked: dict[str, Any]) -> None:
    body = {"prompt": "abc", **asked}
    for chunk in chunks(server, "/v1/completions", body):
        # The types know finished choices only; a chunk's are not.
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        check(Completion, chunk)
    body.pop("stream_options", None)
    check(Completion, server.client.post("/v1/completions", json=body).json())


@pytest.mark.parametrize("asked", [*ASKED, {"logprobs": True, "top_logprobs": 2}], ids=str)
def test_chat_completions(server: Any, asked: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, **asked}
    for chunk in chunks(server, "/v1/chat/completions", body):
        check(ChatCompletionChunk, chunk)
    body.pop("stream_options", None)
    check(ChatCompletion, server.client.post("/v1/chat/completions", json=body).json())


def test_models(server: Any) -> None:
    listed = server.client.get("/v1/models").json()
    assert listed["object"] == "list"
    for model in listed["data"]:
        check(Model, model)
