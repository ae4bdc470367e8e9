"""Every way to ask for structure reaches the engine, and works on the real one."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from engine import StructuredOutputs

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
WAYS: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
    ({"response_format": WRAPPED}, StructuredOutputs(json=SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs(json=SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, StructuredOutputs(json=SCHEMA)),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
    ({"structured_outputs": {"regex": "a+"}}, StructuredOutputs(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=["a", "b"])),
    ({"structured_outputs": {"grammar": "start: A"}}, StructuredOutputs(grammar="start: A")),
    ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA)),
    ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
    ({"guided_choice": ["a"]}, StructuredOutputs(choice=["a"])),
    ({"guided_grammar": "start: A"}, StructuredOutputs(grammar="start: A")),
]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("body", "asked"), WAYS, ids=str)
def test_every_way_reaches_the_engine(server: Any, path: str, body: Any, asked: Any) -> None:
    response = server.client.post(path, json={**PATHS[path], **body})
    assert response.status_code == 200, response.text
    assert server.engine.submitted[0].structured_outputs == asked


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"pattern": "a"}}, "structured_outputs.pattern"),
        ({"guided_json": "{"}, "guided_json"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
    ids=str,
)
def test_what_cant_be_meant_names_the_field(server: Any, body: Any, param: str) -> None:
    response = server.client.post("/v1/completions", json={"prompt": "a", **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_the_real_engine_keeps_to_what_was_asked(real_server: Any) -> None:
    def text(body: dict[str, Any]) -> str:
        body = {"prompt": "go", "max_tokens": 300, "temperature": 2, **body}
        (choice,) = real_server.client.post("/v1/completions", json=body).json()["choices"]
        assert choice["finish_reason"] == "stop"
        return str(choice["text"])

    assert text({"guided_choice": ["yes", "no"]}) in ("yes", "no")
    assert re.fullmatch("[a-c]{20}", text({"guided_regex": "[a-c]{20}"}))
    assert 0 <= json.loads(text({"response_format": WRAPPED}))["n"] <= 9
    many = [{"guided_regex": f"{letter}{{9}}", "seed": 1} for letter in "abcdefgh"] * 3
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(text, many)) == [letter * 9 for letter in "abcdefgh"] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_regex": "(a"}, "guided_regex"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "what"}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
    ids=["regex", "schema"],
)
def test_what_the_library_refuses_is_a_400_in_the_clients_words(
    real_server: Any, body: Any, param: str, stream: bool
) -> None:
    body = {"prompt": "go", "n": 2, "stream": stream, **body}
    response = real_server.client.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)


def test_the_official_client_parses_a_model_of_its_own(real_server: Any) -> None:
    class Answer(BaseModel):
        yes: bool

    with real_server.openai() as client:
        done = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            response_format=Answer,
            max_tokens=200,
        )
    assert isinstance(done.choices[0].message.parsed, Answer)


def test_a_demanded_call_of_the_real_model_fits_its_schema(real_server: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 300,
    }
    response = real_server.client.post("/v1/chat/completions", json=body)
    assert "doesn't read them" in response.json()["error"]["message"]
