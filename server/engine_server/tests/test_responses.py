"""Open Responses: every answer and every event is valid, and OpenAI's client understands them."""

from __future__ import annotations

import json
from typing import Any

import openai
import openresponses_types as spec
import pytest
from pydantic import BaseModel, TypeAdapter

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{{ m.tool_call_id }}\n"
    "{% endfor %}{{ reasoning_effort }}"
)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
SCHEMA = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
EVENTS: TypeAdapter[Any] = TypeAdapter(
    spec.ResponseCreatedStreamingEvent
    | spec.ResponseInProgressStreamingEvent
    | spec.ResponseCompletedStreamingEvent
    | spec.ResponseIncompleteStreamingEvent
    | spec.ResponseFailedStreamingEvent
    | spec.ResponseOutputItemAddedStreamingEvent
    | spec.ResponseOutputItemDoneStreamingEvent
    | spec.ResponseContentPartAddedStreamingEvent
    | spec.ResponseContentPartDoneStreamingEvent
    | spec.ResponseOutputTextDeltaStreamingEvent
    | spec.ResponseOutputTextDoneStreamingEvent
    | spec.ResponseFunctionCallArgumentsDeltaStreamingEvent
    | spec.ResponseFunctionCallArgumentsDoneStreamingEvent
    | spec.ErrorStreamingEvent
)


def ask(server: Any, **body: Any) -> dict[str, Any]:
    response = server.client.post("/v1/responses", json={"input": "hi", **body})
    assert response.status_code == 200, response.text
    spec.ResponseResource.model_validate_json(response.text)
    answer: dict[str, Any] = response.json()
    return answer


def events(server: Any, **body: Any) -> list[dict[str, Any]]:
    """Return a stream's events; each is valid, named and numbered."""
    response = server.client.post("/v1/responses", json={"input": "hi", "stream": True, **body})
    assert response.status_code == 200, response.text
    *frames, done = response.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    found = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        EVENTS.validate_json(data.removeprefix("data: "))
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        found.append(event)
    return found


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("Grüß 😀", {}),
    ("", {}),
    ("a long text", {"max_output_tokens": 3}),
    (f"Well. {CALL}{CALL} And so on", {"tools": [TOOL]}),
    (CALL, {"tools": [TOOL], "instructions": "be kind", "metadata": {"a": "b"}}),
    ('{"a": 1}', {"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}}),
    ('[{"name": "weather", "parameters": {}}]', {"tools": [TOOL], "tool_choice": "required"}),
    ('{"a": 1}', {"text": {"format": {"type": "json_object"}}}),
    ('{"a": 1}', {"text": {"format": SCHEMA}}),
    ("x", {"reasoning": {"effort": "low"}, "temperature": 0.5, "store": True}),
]


@pytest.mark.parametrize(("text", "body"), CASES)
def test_a_stream_ends_with_the_whole_answer(start_server: Any, text: str, body: Any) -> None:
    server = start_server(text=text, template=TEMPLATE)
    whole, streamed = ask(server, **body), events(server, **body)
    last = streamed[-1]["response"]
    assert streamed[-1]["type"] == f"response.{whole['status']}"
    changing = {"id", "created_at", "completed_at", "output"}
    assert {k: v for k, v in last.items() if k not in changing} == {
        k: v for k, v in whole.items() if k not in changing
    }
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert whole["store"] is False
    done = [e["item"] for e in streamed if e["type"] == "response.output_item.done"]
    assert done == last["output"]
    for place, item in enumerate(last["output"]):
        mine = [e for e in streamed if e.get("output_index") == place]
        joined = "".join(e["delta"] for e in mine if e["type"].endswith(".delta"))
        wanted = item["content"][0]["text"] if item["type"] == "message" else item["arguments"]
        assert joined == wanted
        assert [e["type"] for e in mine].count("response.output_item.added") == 1


def test_the_official_client_reads_text_tools_and_streams(start_server: Any) -> None:
    server = start_server(text=f"Well. {CALL}", template=TEMPLATE)
    with server.openai() as client:
        answer = client.responses.create(model="scripted", input="hi", tools=[TOOL])
        assert answer.output_text == "Well. "
        call = answer.output[1]
        assert json.loads(call.arguments) == {"city": "Köln"}
        with client.responses.stream(model="scripted", input="hi", tools=[TOOL]) as stream:
            final = stream.get_final_response()
        assert final.output_text == "Well. "
        history = [
            {"role": "user", "content": "hi"},
            *answer.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        ]
        prompt = f"user: hi\nassistant: Well. [weather]\ntool: rain{call.call_id}\n"
        again = client.responses.create(model="scripted", input=history)
    assert again.usage.input_tokens == len(prompt)


def test_the_official_client_parses_a_model_of_its_own(real_server: Any) -> None:
    class Answer(BaseModel):
        yes: bool

    with real_server.openai() as client:
        done = client.responses.parse(model="tiny", input="hi", text_format=Answer)
    assert isinstance(done.output_parsed, Answer)


def test_a_stream_that_fails_says_so(start_server: Any) -> None:
    server = start_server(text="a long text", fail_at=4)
    found = events(server)
    assert [e["type"] for e in found[-2:]] == ["response.failed", "error"]
    assert "out of luck" in found[-2]["response"]["error"]["message"]
    with server.openai() as client, pytest.raises(openai.APIError, match="out of luck"):
        list(client.responses.create(model="scripted", input="hi", stream=True))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"temprature": 1}, "temprature"),
        ({"input": "x" * 600}, "input"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cant_be_honoured_is_refused_in_the_clients_words(
    start_server: Any, body: dict[str, Any], param: str | None, stream: bool
) -> None:
    server = start_server(template=TEMPLATE)
    response = server.client.post("/v1/responses", json={"input": "hi", "stream": stream, **body})
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param
