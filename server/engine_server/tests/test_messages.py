"""Anthropic's API, as Anthropic's own client sees it."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{{ m.tool_call_id }}\n"
    "{% endfor %}"
)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
TOOL = {"name": "weather", "description": "tell", "input_schema": {"type": "object"}}
ASK: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "hi"}],
}


def client_of(server: Any) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0)


def test_a_text_is_answered_whole_and_in_a_stream(start_server: Any) -> None:
    server = start_server(text="Grüß 😀 dich", cached=3)
    with client_of(server) as client:
        whole = client.messages.create(**ASK, system="be kind")
        with client.messages.stream(**ASK, system="be kind") as stream:
            texts = list(stream.text_stream)
            final = stream.get_final_message()
    assert whole.content[0].text == "".join(texts) == final.content[0].text == "Grüß 😀 dich"
    assert len(texts) > 3
    assert (whole.stop_reason, final.stop_reason) == ("end_turn", "end_turn")
    assert whole.usage.cache_read_input_tokens == 3
    assert whole.usage.input_tokens == len("system: be kind\nuser: hi\nassistant: ") - 3
    assert whole.usage.output_tokens == final.usage.output_tokens == len("Grüß 😀 dich".encode())


def test_limits_and_stop_sequences_are_told(start_server: Any, real_server: Any) -> None:
    with client_of(start_server(text="a long text")) as client:
        cut = client.messages.create(**{**ASK, "max_tokens": 3})
    assert (cut.content[0].text, cut.stop_reason) == ("a l", "max_tokens")
    letters = [chr(code) for code in range(97, 123)]
    ask = {**ASK, "model": "tiny", "stop_sequences": letters, "max_tokens": 240}
    with client_of(real_server) as client:
        stopped = client.messages.create(**ask)
    assert stopped.stop_reason == "stop_sequence"
    assert stopped.stop_sequence in letters


def test_tools_are_used_whole_and_in_a_stream(start_server: Any) -> None:
    server = start_server(text=f"Well. {CALL}{CALL}", template=TEMPLATE)
    with client_of(server) as client:
        whole = client.messages.create(**ASK, tools=[TOOL])
        with client.messages.stream(**ASK, tools=[TOOL]) as stream:
            final = stream.get_final_message()
    for message in (whole, final):
        assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
        assert message.content[0].text == "Well. "
        assert [b.input for b in message.content[1:]] == [{"city": "Köln"}] * 2
        assert message.content[1].id != message.content[2].id
        assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"type": "any"}, '[{"name": "weather", "parameters": {"a": 1}}]'),
        ({"type": "tool", "name": "weather"}, '{"a": 1}'),
    ],
    ids=["any", "tool"],
)
def test_a_use_can_be_demanded(start_server: Any, choice: Any, text: str) -> None:
    server = start_server(text=text, template=TEMPLATE)
    with client_of(server) as client:
        message = client.messages.create(**ASK, tools=[TOOL], tool_choice=choice)
    (block,) = message.content
    assert (block.name, block.input) == ("weather", {"a": 1})
    assert server.engine.submitted[0].structured_outputs is not None


def test_the_whole_conversation_reaches_the_template(start_server: Any, tokenizer: Any) -> None:
    server = start_server(text="x", template=TEMPLATE)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]
    prompt = "user: one\nassistant: two[weather]\ntool: raint1\nuser: so?\n"
    with client_of(server) as client:
        count = client.messages.count_tokens(model="scripted", messages=messages)
        client.messages.create(**{**ASK, "messages": messages})
    assert count.input_tokens == len(prompt)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_result", "tool_use_id": "x"}],
                    }
                ]
            },
            "messages[0].content[0].type",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cant_be_honoured_is_refused(
    start_server: Any, body: dict[str, Any], param: str, stream: bool
) -> None:
    server = start_server(template=TEMPLATE)
    response = server.client.post("/v1/messages", json={**ASK, "stream": stream, **body})
    assert response.status_code == 400, response.text
    answer = response.json()
    assert answer["type"] == "error"
    assert answer["error"]["param"] == param
    assert answer["error"]["type"] == "invalid_request_error"


def test_the_client_raises_its_own_errors(start_server: Any) -> None:
    server = start_server(config={"api_key": ("secret",)})
    with client_of(server) as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(**ASK)
    with anthropic.Anthropic(base_url=server.url, api_key="secret") as client:
        assert client.messages.create(**ASK).content
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            client.messages.create(**{**ASK, "model": "other"})


def test_a_stream_that_fails_says_so(start_server: Any) -> None:
    server = start_server(text="a long text", fail_at=4)
    with client_of(server) as client, pytest.raises(anthropic.APIError, match="out of luck"):
        list(client.messages.create(**ASK, stream=True))
    server.wait(lambda: server.engine.free_blocks == 1000)
