"""Tools: what the model is told, what it is held to, and what the client gets of its calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from engine.testing.tiny import byte_tokenizer
from engine_grammar_llguidance.plugin import Llguidance

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ m.tool_call_id }}\n{% endfor %}{{ reasoning_effort }}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"City": {"enum": ["Köln", "Paris"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ASK: dict[str, Any] = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [WEATHER, CLOCK],
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
NAMED = {"type": "function", "function": {"name": "weather"}}


def ask(server: Any, **body: Any) -> dict[str, Any]:
    response = server.client.post("/v1/chat/completions", json={**ASK, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    ChatCompletion.model_validate_json(response.text, strict=True)
    return answer


def streamed(server: Any, **body: Any) -> tuple[str, dict[int, dict[str, Any]], str]:
    """Return text, calls and finish reason of a stream, joined as clients do."""
    text, calls, reason = "", dict[int, dict[str, Any]](), ""
    body = {**ASK, **body, "stream": True}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    lines = response.text
    for line in lines.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]:
        data = line.removeprefix("data: ")
        ChatCompletionChunk.model_validate_json(data, strict=True)
        (choice,) = json.loads(data)["choices"]
        text += choice["delta"].get("content") or ""
        assert not (reason and choice["finish_reason"])
        reason = choice["finish_reason"] or reason
        for part in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(part["index"], {"arguments": "", **part})
            assert part is call or "id" not in part or part["id"] == call["id"]
            call["arguments"] += part["function"]["arguments"]
    return text, calls, reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_free_call_is_told_apart_from_text(start_server: Any, stream: bool) -> None:
    server = start_server(text=f"Well.\n{CALL}\n{CALL}", template=TEMPLATE)
    if stream:
        text, calls, reason = streamed(server)
        found = [(c["function"]["name"], c["arguments"]) for c in calls.values()]
        ids = [c["id"] for c in calls.values()]
    else:
        (choice,) = ask(server)["choices"]
        text, reason = choice["message"]["content"], choice["finish_reason"]
        made = choice["message"]["tool_calls"]
        found = [(c["function"]["name"], c["function"]["arguments"]) for c in made]
        ids = [c["id"] for c in made]
    assert (text, reason) == ("Well.\n", "tool_calls")
    assert found == [("weather", '{"city": "Köln"}')] * 2
    assert len(set(ids)) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_a_call_is_text(start_server: Any, stream: bool) -> None:
    server = start_server(text="a < b <tool_", template=TEMPLATE)
    if stream:
        assert streamed(server) == ("a < b <tool_", {}, "stop")
    else:
        (choice,) = ask(server)["choices"]
        assert choice["message"] == {
            "role": "assistant",
            "content": "a < b <tool_",
            "refusal": None,
        }
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most_when_the_client_wants_no_more(start_server: Any, stream: bool) -> None:
    server = start_server(text=CALL + CALL, template=TEMPLATE)
    if stream:
        assert len(streamed(server, parallel_tool_calls=False)[1]) == 1
    else:
        (choice,) = ask(server, parallel_tool_calls=False)["choices"]
        assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("required", '[{"name": "weather", "parameters": {"city": "Paris"}}]'),
        (NAMED, '{"city": "Paris"}'),
    ],
    ids=["required", "named"],
)
def test_a_demanded_call_is_read(start_server: Any, stream: bool, choice: Any, text: str) -> None:
    server = start_server(text=text, template=TEMPLATE)
    if stream:
        said, calls, reason = streamed(server, tool_choice=choice)
        assert not said
        (name, arguments), finish = (
            (calls[0]["function"]["name"], calls[0]["arguments"]),
            reason,
        )
    else:
        (made,) = ask(server, tool_choice=choice)["choices"]
        (call,) = made["message"]["tool_calls"]
        assert made["message"]["content"] is None
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        finish = made["finish_reason"]
    assert (name, json.loads(arguments), finish) == ("weather", {"city": "Paris"}, "tool_calls")
    assert server.engine.submitted[0].structured_outputs is not None


def fits(schema: Any, text: str) -> bool:
    """Say whether a text can be made under a schema."""
    library, tokenizer = Llguidance(), byte_tokenizer()
    library.load(tokenizer, vocab_size=len(tokenizer), end_token_ids=[2])
    matcher: Any = library.compile(schema).matcher()
    tokens = tokenizer(text).input_ids
    taken = matcher.inner.try_consume_tokens(tokens)
    return bool(taken == len(tokens) and matcher.inner.is_accepting())


def test_what_a_demanded_call_is_held_to(start_server: Any) -> None:
    server = start_server(text="[]", template=TEMPLATE)
    for more in ({"tool_choice": "required"}, {"tool_choice": "required"}, {"tool_choice": NAMED}):
        ask(server, **more)
    ask(server, tool_choice="required", parallel_tool_calls=False)
    several, _, named, one = (p.structured_outputs for p in server.engine.submitted)
    good, clock = (
        '{"name": "weather", "parameters": {"city": "Köln"}}',
        '{"name": "clock", "parameters": {}}',
    )
    assert fits(several, f"[{good}]")
    assert fits(several, f"[{good}, {clock}]")
    assert fits(one, f"[{clock}]")
    assert not fits(one, f"[{good}, {clock}]")
    assert not fits(several, "[]")
    assert not fits(several, '[{"name": "weather", "parameters": {"city": "Rom"}}]')
    assert not fits(several, '[{"name": "other", "parameters": {}}]')
    assert fits(named, '{"city": "Köln"}')
    assert not fits(named, '{"city": "Rom"}')


def test_tools_and_their_history_reach_the_template(start_server: Any, tokenizer: Any) -> None:
    server = start_server(text="fine", template=TEMPLATE)
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"a": 1}'}}
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    answer = ask(server, messages=history, return_token_ids=True, reasoning_effort="low")
    prompt = tokenizer.decode(answer["prompt_token_ids"])
    declared, _, rest = prompt.partition("user: hi\n")
    assert json.loads(declared) == [WEATHER, CLOCK]
    expected = '<tool_call>{"name": "clock", "arguments": {"a": 1}}</tool_call>'
    assert rest == f"assistant: {expected}\ntool: noonc1\nlow"
    untold = ask(server, tool_choice="none", return_token_ids=True)
    assert "weather" not in tokenizer.decode(untold["prompt_token_ids"])


def test_marks_that_are_special_tokens_stay_in_the_text(start_server: Any) -> None:
    server = start_server(text=CALL, template=TEMPLATE)
    ask(server)
    ask(server, tool_choice="none")
    ask(server, tool_choice=NAMED)
    kept = [not params.skip_special_tokens for params in server.engine.submitted]
    assert kept == [True, False, False]


def test_the_official_client_runs_its_loop(start_server: Any) -> None:
    class weather(BaseModel):  # noqa: N801  (a function's name)
        city: str

    import openai

    server = start_server(text=CALL, template=TEMPLATE)
    with server.openai() as client:
        tool = openai.pydantic_function_tool(weather)
        done = client.chat.completions.parse(**{**ASK, "tools": [tool]})
        (call,) = done.choices[0].message.tool_calls
        assert call.function.parsed_arguments == weather(city="Köln")
        with client.chat.completions.stream(**{**ASK, "tools": [tool]}) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.tool_calls[0].function.parsed_arguments.city == "Köln"
        message = done.choices[0].message
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        again = [*ASK["messages"], message, result]
        assert client.chat.completions.create(model="scripted", messages=again).choices


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"tools": [{"type": "web"}]}, "tools[0].type", "'function'"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name", "twice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, None, "pattern"),
        ({"tool_choice": "always"}, "tool_choice", "'required'"),
        ({"tool_choice": 1}, "tool_choice", "must be none, auto, required"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
            "no tool 'x'",
        ),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "contradicts",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "required"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content", "is required"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "[]"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
            "JSON object",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"chat_template": "x"}, "chat_template", "--trust-request-chat-template"),
    ],
    ids=str,
)
def test_what_cant_be_meant_is_refused(
    start_server: Any, body: dict[str, Any], param: str | None, said: str
) -> None:
    server = start_server(template=TEMPLATE)
    response = server.client.post("/v1/chat/completions", json={**ASK, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert said in error["message"]
    assert param is None or error["param"] == param


def test_a_template_or_a_format_that_knows_no_tools_is_said(start_server: Any) -> None:
    blind = start_server()
    response = blind.client.post("/v1/chat/completions", json=ASK)
    assert "--tool-call-parser" in response.json()["error"]["message"]
    body = {**ASK, "tool_choice": "required"}
    response = blind.client.post("/v1/chat/completions", json=body)
    assert "doesn't read them" in response.json()["error"]["message"]


def test_a_format_can_be_named_and_a_template_replaced(start_server: Any, tmp_path: Any) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ tools }}{{ messages[0].content }}")
    config = {"tool_call_parser": "mistral", "chat_template": file}
    server = start_server(text='[TOOL_CALLS]clock[ARGS]{"x": 1}', template="", config=config)
    (choice,) = ask(server)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "clock", "arguments": '{"x": 1}'}
    assert len(call["id"]) == 9
    # Its marks are special tokens, so these must be in the text.
    assert not server.engine.submitted[0].skip_special_tokens


def test_a_client_that_is_trusted_may_bring_a_template(start_server: Any, tokenizer: Any) -> None:
    server = start_server(config={"trust_request_chat_template": True})
    body = {"messages": ASK["messages"], "chat_template": "<{{ messages[0].content }}>"}
    body |= {"return_token_ids": True}
    answer = server.client.post("/v1/chat/completions", json=body).json()
    assert tokenizer.decode(answer["prompt_token_ids"]) == "<hi>"
    body["chat_template"] = "{% broken"
    error = server.client.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "chat_template"


STRANGER = """
from engine.tool_parsers import CallDelta, TextDelta, ToolParser, ToolParserPlugin as Base

class Made(Base):
    @classmethod
    def handles(cls, chat_template):
        return "CALL!" in chat_template
    def parser(self):
        return Parser()

class Parser(ToolParser):
    text = ""
    def push(self, text):
        self.text += text
        return []
    def finish(self):
        mark, _, name = self.text.partition("CALL!")
        said = [TextDelta(mark)] if mark else []
        return said + ([CallDelta(0, name, "{}")] if name else [])
"""


@pytest.mark.parametrize("named", [False, True])
def test_a_strangers_parser_is_found_by_template_or_by_name(
    start_server: Any, make_plugin: Any, named: bool
) -> None:
    make_plugin("shouting", kind="tool_parsers", body=STRANGER)
    template = TEMPLATE if named else "CALL!{{ tools }}{{ messages[0].content }}"
    config = {"tool_call_parser": "shouting"} if named else {}
    server = start_server(text="Now CALL!clock", template=template, config=config)
    (choice,) = ask(server)["choices"]
    assert choice["message"]["content"] == "Now "
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "clock"
