"""The server on the real engine: whole and streamed answers agree, blocks come back."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def complete(server: Any, **body: Any) -> dict[str, Any]:
    response = server.client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: Any, **body: Any) -> list[dict[str, Any]]:
    """Return the chunks' choices, joined by index as a client joins them."""
    response = server.client.post("/v1/completions", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    *events, done = response.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for new in json.loads(event.removeprefix("data: "))["choices"]:
            empty: dict[str, Any] = {
                "text": "",
                "tokens": [],
                "values": [],
                "reason": None,
                "offsets": [],
            }
            choice = choices.setdefault(new["index"], empty)
            choice["text"] += new["text"]
            choice["reason"] = new["finish_reason"] or choice["reason"]
            if new["logprobs"]:
                choice["tokens"] += new["logprobs"]["tokens"]
                choice["values"] += new["logprobs"]["token_logprobs"]
                choice["offsets"] += new["logprobs"]["text_offset"]
    return [choices[index] for index in sorted(choices)]


def free_blocks(server: Any) -> int:
    stats = server.client.get("/v1/engine").json()["stats"]
    free = stats["num_free_blocks"] - 10**6 * (stats["num_running"] + stats["num_waiting"])
    return int(free)


async def until_free(server: Any, wanted: int) -> None:
    for _ in range(200):
        if free_blocks(server) == wanted:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{free_blocks(server)} blocks are free, not {wanted}")


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 5, "n": 3},
        {"temperature": 1, "seed": 6, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.2},
        {"temperature": 0, "echo": True},
        {"temperature": 0, "logprobs": 3},
        {"temperature": 1, "seed": 7, "logprobs": 2, "echo": True, "n": 2},
        {"prompt": ["a", "bb", "ccc"], "temperature": 0, "logprobs": 0},
    ],
    ids=str,
)
def test_a_stream_joins_to_the_whole_answer(real_server: Any, asked: dict[str, Any]) -> None:
    body = {"prompt": f"tell {random.random()}", "max_tokens": 40, "ignore_eos": True, **asked}
    whole = complete(real_server, **body)["choices"]
    streamed = stream(real_server, **body)
    assert [c["text"] for c in streamed] == [c["text"] for c in whole]
    assert [c["reason"] for c in streamed] == [c["finish_reason"] for c in whole]
    if "logprobs" in asked:
        for ours, theirs in zip(streamed, whole, strict=True):
            assert ours["tokens"] == theirs["logprobs"]["tokens"]
            assert ours["offsets"] == theirs["logprobs"]["text_offset"]
            first = 1 if asked.get("echo") else 0
            assert ours["values"][first:] == pytest.approx(
                theirs["logprobs"]["token_logprobs"][first:], abs=1e-4
            )


def test_a_stop_string_ends_both_forms_right_before_it(real_server: Any) -> None:
    body = {"prompt": "once", "max_tokens": 60, **GREEDY}
    text = complete(real_server, **body)["choices"][0]["text"]
    for length in (1, 2, 5):
        stop = text[20 : 20 + length]
        whole = complete(real_server, **body, stop=[stop, "never said"])["choices"][0]
        assert whole["text"] == text[: text.index(stop)]
        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)
        (streamed,) = stream(real_server, **body, stop=stop)
        assert (streamed["text"], streamed["reason"]) == (whole["text"], "stop")


def test_the_logprobs_of_a_prompt_are_those_it_was_made_with(real_server: Any) -> None:
    prompt = list(b"fine day")
    made = complete(
        real_server, prompt=prompt, max_tokens=8, logprobs=1, return_token_ids=True, **GREEDY
    )["choices"][0]
    for limit in (0, 1):
        again = complete(
            real_server,
            prompt=prompt + made["token_ids"],
            max_tokens=limit,
            echo=True,
            logprobs=1,
            **GREEDY,
        )["choices"][0]["logprobs"]
        assert len(again["tokens"]) == len(prompt) + 8 + limit
        assert again["token_logprobs"][0] is None
        values = again["token_logprobs"][len(prompt) : len(prompt) + 8]
        assert values == pytest.approx(made["logprobs"]["token_logprobs"], abs=1e-3)
        assert again["tokens"][len(prompt) : len(prompt) + 8] == made["logprobs"]["tokens"]


def test_chat_streams_what_it_answers_whole(real_server: Any) -> None:
    with real_server.openai() as client:
        request = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "max_completion_tokens": 30,
            "temperature": 0,
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**request)
        texts, data = ["", ""], [b"", b""]
        for chunk in client.chat.completions.create(**request, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.logprobs:
                    data[choice.index] += b"".join(bytes(e.bytes) for e in choice.logprobs.content)
    assert texts == [choice.message.content for choice in whole.choices]
    assert [d.decode(errors="replace") for d in data] == texts
    assert all(len(e.top_logprobs) == 2 for e in whole.choices[0].logprobs.content)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [({"max_tokens": 0}, 0), ({"max_tokens": 1}, 1), ({"max_tokens": None}, 16)],
)
def test_the_fewest_and_the_default_tokens(
    real_server: Any, body: dict[str, Any], tokens: int
) -> None:
    answer = complete(real_server, prompt="abc", **body, **GREEDY)
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == "length"
    (streamed,) = stream(real_server, prompt="abc", **body, **GREEDY)
    assert streamed["text"] == answer["choices"][0]["text"]


def test_an_answer_may_fill_the_context(real_server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 400}], **GREEDY}
    usage = real_server.client.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["total_tokens"] == 512


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": "x" * 513}, "maximum context length is 512 tokens"),
        ({"prompt": "x" * 500, "max_tokens": 13}, "maximum context length is 512 tokens"),
        ({"prompt": "x", "max_tokens": 600, "min_tokens": 600}, "maximum context length"),
        ({"prompt": ""}, "must not be empty"),
        ({"prompt": [10**6]}, "out of the vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_next_is_served(
    real_server: Any, body: dict[str, Any], words: str
) -> None:
    for streaming in (False, True):
        response = real_server.client.post("/v1/completions", json={**body, "stream": streaming})
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
    assert complete(real_server, prompt="abc", max_tokens=1)["choices"]


def test_two_hundred_clients_that_leave_leave_no_block_behind(real_server: Any) -> None:
    complete(real_server, prompt="warm", max_tokens=1)
    url = f"{real_server.url}/v1/completions"

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        body = {
            "prompt": f"{number}" * 9,
            "max_tokens": 400,
            "n": 1 + number % 2,
            "stream": number % 3 != 0,
            "ignore_eos": True,
        }
        try:
            async with asyncio.timeout(0.004 * (number % 50)):
                async with client.stream("POST", url, json=body) as response:
                    async for _ in response.aiter_bytes():
                        pass
        except TimeoutError:
            pass

    async def main() -> None:
        free = free_blocks(real_server)
        limits = httpx.Limits(max_connections=20)
        async with httpx.AsyncClient(limits=limits, timeout=60) as client:
            await asyncio.gather(*(leave(client, number) for number in range(200)))
        await until_free(real_server, free)

    asyncio.run(main())
    assert complete(real_server, prompt="still", max_tokens=2)["choices"]


def test_metrics_and_settings_come_from_the_engine(real_server: Any) -> None:
    complete(real_server, prompt="counted", max_tokens=3, **GREEDY)
    metrics = real_server.client.get("/metrics").text
    for name in (
        "engine:num_requests_running 0.0",
        "engine:generation_tokens_total",
        'engine:request_success_total{finished_reason="length"}',
        "engine:steps_total{",
        "engine:settings_info{",
    ):
        assert name in metrics
    settings = real_server.client.get("/v1/engine").json()["settings"]
    assert {"dtype", "compilation_config.mode"} <= {record["setting"] for record in settings}
