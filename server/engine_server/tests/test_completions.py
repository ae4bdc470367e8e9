"""POST /v1/completions, through the official client."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.sampling_params import SamplingParams
from engine_server.completion_request import CompletionRequest

TEXT = "Grüße, 😀 wörld!"


@pytest.fixture
def client(server: Any) -> Any:
    with server.openai() as client:
        yield client


def expected(server: Any, tokenizer: Any, prompt: str, index: int = 0, limit: int = 10**6) -> str:
    ids = server.engine.reply(tokenizer(prompt).input_ids, index)
    return str(tokenizer.decode(ids[:limit]))


def test_a_prompt_is_continued(client: Any, server: Any, tokenizer: Any) -> None:
    prompt = f"Once {random.random()}"
    answer = client.completions.create(model="scripted", prompt=prompt, max_tokens=200)
    assert answer.object == "text_completion"
    assert answer.model == "scripted"
    (choice,) = answer.choices
    assert choice.text == expected(server, tokenizer, prompt)
    assert choice.finish_reason == "stop"
    made = len(server.engine.reply(tokenizer(prompt).input_ids, 0))
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == made
    assert answer.usage.total_tokens == len(prompt) + made


def test_sixteen_tokens_are_made_by_default(start_server: Any) -> None:
    server = start_server(text="x" * 50)
    for body in ({}, {"max_tokens": None}):
        answer = server.client.post("/v1/completions", json={"prompt": "hi", **body}).json()
        assert answer["choices"][0]["text"] == "x" * 16
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_joins_to_the_whole_answer(client: Any) -> None:
    request = {"model": "scripted", "prompt": "tell", "max_tokens": 200, "n": 3}
    whole = client.completions.create(**request)
    texts, reasons = ["", "", ""], [""] * 3
    for chunk in client.completions.create(**request, stream=True):
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_may_be_texts_or_ids_one_or_several(
    client: Any, server: Any, tokenizer: Any, stream: bool
) -> None:
    texts = ["one", "two and more"]
    ids = [tokenizer(text).input_ids for text in texts]
    for prompt, several in ((texts[0], 1), (ids[0], 1), (texts, 2), (ids, 2)):
        answer = client.completions.create(
            model="scripted", prompt=prompt, max_tokens=300, n=2, stream=stream
        )
        got = [""] * (2 * several)
        for part in answer if stream else [answer]:
            for choice in part.choices:
                got[choice.index] += choice.text
        assert got == [
            expected(server, tokenizer, text, index)
            for text in texts[:several]
            for index in range(2)
        ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_counts_once_for_all_its_choices(client: Any, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = client.completions.create(
        model="scripted", prompt=["abc", "defgh"], n=4, max_tokens=2, **options
    )
    usage = list(answer)[-1].usage if stream else answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (8, 16)


def test_usage_comes_once_in_a_last_chunk_without_choices(client: Any) -> None:
    request = {"model": "scripted", "prompt": "abc", "max_tokens": 3, "n": 2, "stream": True}
    asked = list(client.completions.create(**request, stream_options={"include_usage": True}))
    assert [chunk.usage for chunk in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1].choices == []
    assert asked[-1].usage.total_tokens == 3 + 6
    for options in ({}, {"stream_options": {"include_usage": False}}):
        silent = list(client.completions.create(**request, **options))
        assert all(chunk.choices and chunk.usage is None for chunk in silent)


def test_usage_may_come_with_every_chunk(client: Any) -> None:
    chunks = list(
        client.completions.create(
            model="scripted",
            prompt="abc",
            max_tokens=3,
            stream=True,
            stream_options={"continuous_usage_stats": True},
        )
    )
    assert [c.usage.completion_tokens for c in chunks] == [1, 2, 3]
    assert all(c.usage.prompt_tokens == 3 for c in chunks)


def test_cached_prompt_tokens_are_told(start_server: Any) -> None:
    server = start_server(cached=2)
    usage = server.client.post("/v1/completions", json={"prompt": "abc"}).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_echo_returns_the_prompt_first(
    client: Any, server: Any, tokenizer: Any, stream: bool
) -> None:
    for prompt in ("say ü ", tokenizer("say ü ").input_ids):
        answer = client.completions.create(
            model="scripted", prompt=prompt, echo=True, max_tokens=4, n=2, stream=stream
        )
        got = ["", ""]
        for part in answer if stream else [answer]:
            for choice in part.choices:
                got[choice.index] += choice.text
        assert got[0].startswith("say ü ")
        assert got[1].startswith("say ü ")
        assert len(got[0]) > len("say ü ")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_name_every_token_and_its_offset(
    start_server: Any, tokenizer: Any, stream: bool, echo: bool
) -> None:
    server = start_server(text=TEXT)
    prompt = "é:"
    with server.openai() as client:
        answer = client.completions.create(
            model="scripted", prompt=prompt, logprobs=2, echo=echo, max_tokens=99, stream=stream
        )
        tokens, values, tops, offsets = list[str](), list[Any](), list[Any](), list[int]()
        text = ""
        for part in answer if stream else [answer]:
            text += part.choices[0].text
            if (logprobs := part.choices[0].logprobs) is not None:
                tokens += logprobs.tokens
                values += logprobs.token_logprobs
                tops += logprobs.top_logprobs
                offsets += logprobs.text_offset
    whole = (prompt if echo else "") + TEXT
    assert text == whole
    assert len(tokens) == len(values) == len(tops) == len(offsets) == len(whole.encode())
    first: list[Any] = [None] if echo else []
    assert values == first + [-0.5] * (len(values) - len(first))
    assert all(len(top) == 2 for top in tops[len(first) :])
    # One token is one byte here: each starts where the character that it belongs to starts.
    lengths = [len(char.encode()) for char in whole]
    assert offsets == [index for index, length in enumerate(lengths) for _ in range(length)]
    assert tokens[offsets.index(whole.index("!"))] == "!"
    assert "bytes:\\xc3" in tokens


def test_prompt_logprobs_are_returned_by_token_id(server: Any, tokenizer: Any) -> None:
    body = {"prompt": "abc", "prompt_logprobs": 1, "max_tokens": 1}
    choice = server.client.post("/v1/completions", json=body).json()["choices"][0]
    ids = tokenizer("abc").input_ids
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second[str(ids[1])] == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert str(ids[2]) in third


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_returned_on_request(server: Any, tokenizer: Any, stream: bool) -> None:
    ids = tokenizer("abc").input_ids
    with server.openai() as client:
        answer: Any = client.completions.create(
            model="scripted",
            prompt="abc",
            max_tokens=5,
            stream=stream,
            extra_body={"return_token_ids": True},
        )
        parts = [part.choices[0] for part in (answer if stream else [answer])]
    assert parts[0].prompt_token_ids == ids
    assert [t for part in parts for t in part.token_ids] == server.engine.reply(ids, 0)[:5]


def test_without_a_tokenizer_ids_go_in_and_out(start_server: Any) -> None:
    server = start_server(with_tokenizer=False)
    body = {"prompt": [1, 2, 3], "return_token_ids": True, "logprobs": 1, "max_tokens": 2}
    choice = server.client.post("/v1/completions", json=body).json()["choices"][0]
    made = server.engine.reply([1, 2, 3], 0)[:2]
    assert choice["token_ids"] == made
    assert choice["logprobs"]["tokens"] == [f"token_id:{t}" for t in made]
    refused = server.client.post("/v1/completions", json={"prompt": "text"})
    assert refused.status_code == 400
    assert "without a tokenizer" in refused.json()["error"]["message"]


def test_no_tokens_may_be_asked_for(client: Any) -> None:
    answer = client.completions.create(model="scripted", prompt="abc", max_tokens=0, echo=True)
    assert answer.choices[0].text == "abc"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 0


def test_every_sampling_parameter_reaches_the_engine(server: Any) -> None:
    given = {
        "n": 2,
        "max_tokens": 7,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.75,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 7,
        "logit_bias": {"5": 3.5},
        "logprobs": 3,
        "prompt_logprobs": 2,
        "stop": ["a", "b"],
        "stop_token_ids": [9],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    response = server.client.post("/v1/completions", json={"prompt": "abc", **given})
    assert response.status_code == 200, response.text
    (params,) = server.engine.submitted
    for name, value in given.items():
        wanted = {5: 3.5} if name == "logit_bias" else value
        assert getattr(params, name) == wanted, name
    # Nothing that the engine offers is missing from the list above; two have tests of their own.
    assert set(params.__struct_fields__) - {"structured_outputs", "pooling"} == set(given)


def test_null_stands_for_the_default(server: Any) -> None:
    fields = [name for name in CompletionRequest.model_fields if name != "prompt"]
    body = {"prompt": "abc", **dict.fromkeys(fields)}
    assert server.client.post("/v1/completions", json=body).status_code == 200
    assert server.engine.submitted == [SamplingParams()]


def test_what_means_nothing_here_is_accepted(server: Any) -> None:
    body = {
        "prompt": "abc",
        "user": "me",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "safety_identifier": "x",
        "prompt_cache_key": "k",
        "verbosity": "low",
        "suffix": None,
        "best_of": 1,
        "response_format": {"type": "text"},
    }
    assert server.client.post("/v1/completions", json=body).status_code == 200
