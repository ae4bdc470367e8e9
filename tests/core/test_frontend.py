"""What a prompt must be before the loop sees it, and what the sentence says when it isn't."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from engine.runtime.frontend import Frontend
from engine.sampling_params import SamplingParams


class Letters:
    """A tokenizer that makes one id of each letter."""

    def __call__(self, text: str) -> Any:
        return type("Encoding", (), {"input_ids": [ord(c) % 50 for c in text]})()


FRONTEND = Frontend(Letters(), max_model_len=16, kv_tokens=100, vocab_size=50, end_token_ids=(0,))


def check(ids: list[int], **params: Any) -> None:
    FRONTEND.check(ids, SamplingParams(**params))


def test_text_becomes_ids_and_keeps_its_text() -> None:
    assert FRONTEND.encode("ab") == ("ab", [ord("a") % 50, ord("b") % 50])


def test_ids_are_taken_as_they_are() -> None:
    ids = [1, 2, 3]
    text, taken = FRONTEND.encode(ids)
    assert (text, taken) == (None, ids)
    assert taken is not ids


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "must not be empty"),
        ([], "must not be empty"),
        ([1, 50], "token id 50 is out of the vocabulary of 50"),
        ([-1], "token id -1 is out of the vocabulary"),
        ([1, "2"], "'2' is no token id"),
        ([True], "True is no token id"),
        ([1.0], "1.0 is no token id"),
    ],
)
def test_a_prompt_that_is_no_prompt_is_refused_by_name(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        FRONTEND.encode(prompt)
    assert message in str(caught.value)
    assert caught.value.param == "prompt"


def test_text_without_a_tokenizer_is_refused_with_the_way_out() -> None:
    frontend = Frontend(None, max_model_len=8, kv_tokens=8, vocab_size=50, end_token_ids=())
    with pytest.raises(RequestError, match="send token ids"):
        frontend.encode("hello")


@pytest.mark.parametrize(
    ("length", "params"),
    [
        (15, {"max_tokens": 1}),
        (15, {"max_tokens": None}),
        (16, {"max_tokens": 0}),
        (1, {"max_tokens": 15, "min_tokens": 15}),
    ],
)
def test_what_fits_the_context_exactly_is_taken(length: int, params: dict[str, Any]) -> None:
    check([1] * length, **params)


@pytest.mark.parametrize(
    ("length", "params", "param"),
    [
        (15, {"max_tokens": 2}, "max_tokens"),
        (16, {"max_tokens": None}, "prompt"),
        (16, {"max_tokens": 1}, "prompt"),
        (17, {"max_tokens": 0}, "prompt"),
    ],
)
def test_what_exceeds_the_context_is_refused_in_the_words_that_clients_look_for(
    length: int, params: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError, match="maximum context length is 16 tokens") as caught:
        check([1] * length, **params)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("params", "param", "message"),
    [
        ({"max_tokens": None, "min_tokens": 20}, "min_tokens", "beyond the context of 16"),
        ({"logit_bias": {50: 1.0}}, "logit_bias", "token id 50"),
        ({"stop_token_ids": [99]}, "stop_token_ids", "token id 99"),
    ],
)
def test_parameters_that_do_not_fit_the_model_are_refused(
    params: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        check([1, 2], **{"max_tokens": 4, **params})
    assert caught.value.param == param


def test_a_prompt_larger_than_the_whole_cache_is_refused_with_the_remedy() -> None:
    frontend = Frontend(None, max_model_len=64, kv_tokens=32, vocab_size=50, end_token_ids=())
    with pytest.raises(RequestError, match="--kv-cache-memory"):
        frontend.check([1] * 40, SamplingParams(max_tokens=1))
