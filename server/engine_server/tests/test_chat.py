"""POST /v1/chat/completions, through the official client, sync and async."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import openai
import pytest

from engine.sampling_params import SamplingParams
from engine_server.chat_request import ChatCompletionRequest

TEXT = "Ja, 😀!"


@pytest.fixture
def client(server: Any) -> Any:
    with server.openai() as client:
        yield client


def answer_to(server: Any, tokenizer: Any, prompt: str, index: int = 0) -> str:
    ids = tokenizer(prompt).input_ids
    return str(tokenizer.decode(server.engine.reply(ids, index)))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_conversation_is_answered(client: Any, server: Any, tokenizer: Any) -> None:
    question = f"{random.random()}?"
    answer = client.chat.completions.create(model="scripted", messages=[user(question)])
    prompt = f"user: {question}\nassistant: "
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == answer_to(server, tokenizer, prompt)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(prompt)


def test_an_answer_goes_up_to_the_context_by_default(server: Any) -> None:
    server.client.post("/v1/chat/completions", json={"messages": [user("hi")]})
    assert server.engine.submitted[0].max_tokens is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_limit_is_honoured(client: Any, name: str) -> None:
    answer = client.chat.completions.create(model="scripted", messages=[user("hi")], **{name: 2})
    assert answer.usage.completion_tokens == 2
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_says_who_speaks_and_joins_to_the_whole_answer(client: Any) -> None:
    request = {"model": "scripted", "messages": [user("hi")], "n": 2}
    whole = client.chat.completions.create(**request)
    texts, roles, reasons = ["", ""], ["", ""], ["", ""]
    for chunk in client.chat.completions.create(**request, stream=True):
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role or ""
            reasons[choice.index] += choice.finish_reason or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert roles == ["assistant", "assistant"]
    assert reasons == ["stop", "stop"]


def test_the_async_client_streams_many_at_once(server: Any, tokenizer: Any) -> None:
    async def ask(client: Any, question: str) -> str:
        stream = await client.chat.completions.create(
            model="scripted", messages=[user(question)], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
            return await asyncio.gather(*(ask(client, f"question {i}") for i in range(20)))

    assert asyncio.run(main()) == [
        answer_to(server, tokenizer, f"user: question {i}\nassistant: ") for i in range(20)
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_tokens_bytes_and_the_likeliest(start_server: Any, stream: bool) -> None:
    server = start_server(text=TEXT)
    with server.openai() as client:
        answer: Any = client.chat.completions.create(
            model="scripted",
            messages=[user("hi")],
            logprobs=True,
            top_logprobs=3,
            stream=stream,
        )
        parts = [part.choices[0] for part in (answer if stream else [answer])]
    entries = [e for part in parts if part.logprobs for e in part.logprobs.content]
    assert b"".join(bytes(e.bytes) for e in entries) == TEXT.encode()
    assert entries[0].token == "J"
    assert {e.logprob for e in entries} == {-0.5}
    assert all([t.logprob for t in e.top_logprobs] == [-0.5, -1.5, -2.5] for e in entries)


def test_logprobs_without_a_count_name_the_chosen_token_only(server: Any) -> None:
    body = {"messages": [user("hi")], "logprobs": True, "max_tokens": 1}
    answer = server.client.post("/v1/chat/completions", json=body).json()
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["top_logprobs"] == []
    plain = server.client.post("/v1/chat/completions", json={"messages": [user("hi")]}).json()
    assert plain["choices"][0]["logprobs"] is None


def prompt_of(server: Any, body: dict[str, Any], tokenizer: Any) -> str:
    body = {"return_token_ids": True, "max_tokens": 1, **body}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return str(tokenizer.decode(response.json()["prompt_token_ids"]))


def test_text_parts_are_joined_by_line_breaks(server: Any, tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}]
    assert prompt_of(server, {"messages": messages}, tokenizer) == "user: one\ntwo\nassistant: "


def test_a_developer_message_is_a_system_message(server: Any, tokenizer: Any) -> None:
    messages = [{"role": "developer", "content": "be kind"}, user("hi")]
    prompt = prompt_of(server, {"messages": messages}, tokenizer)
    assert prompt == "system: be kind\nuser: hi\nassistant: "


def test_the_last_message_may_be_continued(server: Any, tokenizer: Any) -> None:
    messages = [user("hi"), {"role": "assistant", "content": "Well, I"}]
    body = {"messages": messages, "continue_final_message": True}
    assert prompt_of(server, body, tokenizer) == "user: hi\nassistant: Well, I"


def test_the_answer_need_not_be_begun(server: Any, tokenizer: Any) -> None:
    body = {"messages": [user("hi")], "add_generation_prompt": False}
    assert prompt_of(server, body, tokenizer) == "user: hi\n"


def test_variables_reach_the_template(server: Any, tokenizer: Any) -> None:
    body = {"messages": [user("hi")], "chat_template_kwargs": {"mood": "calm"}}
    assert prompt_of(server, body, tokenizer).startswith("[calm]user: hi")


def test_an_answer_can_be_sent_back_as_it_came(client: Any) -> None:
    first = client.chat.completions.create(model="scripted", messages=[user("hi")])
    messages = [user("hi"), first.choices[0].message, user("and?")]
    assert client.chat.completions.create(model="scripted", messages=messages).choices


def test_null_stands_for_the_default(server: Any) -> None:
    fields = [name for name in ChatCompletionRequest.model_fields if name != "messages"]
    body = {"messages": [user("hi")], **dict.fromkeys(fields)}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert server.engine.submitted == [SamplingParams(max_tokens=None)]


def test_what_asks_for_no_tool_is_accepted(server: Any) -> None:
    body = {
        "messages": [user("hi")],
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    }
    assert server.client.post("/v1/chat/completions", json=body).status_code == 200


def test_prompt_logprobs_are_returned_beside_the_choices(server: Any) -> None:
    body = {"messages": [user("hi")], "prompt_logprobs": 0}
    answer = server.client.post("/v1/chat/completions", json=body).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None


def test_a_model_without_a_template_says_what_to_use(start_server: Any) -> None:
    server = start_server(with_tokenizer=False)
    response = server.client.post("/v1/chat/completions", json={"messages": [user("hi")]})
    assert response.status_code == 400
    assert "use /v1/completions" in response.json()["error"]["message"]
