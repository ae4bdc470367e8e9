"""Sampling parameters: every range, what the sentence says, and that they cross as they are."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from engine.errors import RequestError
from engine.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS, SamplingParams
from engine.structured_outputs import StructuredOutputs

FIELDS = {field.name: field for field in msgspec.structs.fields(SamplingParams)}

ALLOWED: dict[str, list[Any]] = {
    "n": [1, 128],
    "max_tokens": [None, 16, 2**31 - 1],
    "min_tokens": [0, 16],
    "temperature": [0, 0.0, 1e-9, 1, 100],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "top_p": [1e-9, 0.5, 1],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [1e-9, 1, 10],
    "presence_penalty": [-2, 0, 2],
    "frequency_penalty": [-2, 0, 2],
    "seed": [None, 0, -(2**63), 2**63 - 1],
    "logit_bias": [None, {}, {0: -100}, {7: 100.0, 8: 0}],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0, 20],
    "stop": [[], ["x"], ["x" * MAX_STOP_LENGTH] * MAX_STOP_STRINGS],
    "stop_token_ids": [[], [0, 5]],
    "include_stop_str_in_output": [True, False],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
    "structured_outputs": [None, StructuredOutputs(json_object=True)],
    "pooling": [None],
}

NOT_COUNTS: list[Any] = [1.0, "1", True, math.nan, [1]]
NOT_NUMBERS: list[Any] = ["1", True, False, None, math.nan, math.inf, -math.inf, 10**400, [1]]

REFUSED: dict[str, tuple[str, list[Any]]] = {
    "n": ("from 1 to 128", [0, -1, 129]),
    "max_tokens": ("0 or more (up to 2147483647), or null", [-1, 2**31]),
    "min_tokens": ("0 or more (up to 2147483647)", [-1, 2**31]),
    "temperature": ("from 0 to 100", [-0.1, 100.1]),
    "top_k": ("-1, 0 (both: off) or more (up to 2147483647)", [-2, 2**31]),
    "top_p": ("more than 0 and at most 1", [0, -0.5, 1.0001]),
    "min_p": ("from 0 to 1", [-1e-9, 1.1]),
    "repetition_penalty": ("more than 0 and at most 10", [0, -1, 10.1]),
    "presence_penalty": ("from -2 to 2", [-2.1, 2.1]),
    "frequency_penalty": ("from -2 to 2", [-2.1, 2.1]),
    "seed": ("a 64-bit integer or null", [2**63, -(2**63) - 1]),
    "logit_bias": (
        "a table from token ids to numbers from -100 to 100",
        [
            *({-1: 1.0}, {"x": 1.0}, {"-1": 1.0}, {1.5: 1.0}, {True: 1.0}, {None: 1.0}),
            *({1: 100.5}, {1: -101}, {1: math.nan}, {1: "1"}, {1: None}, {1: True}),
            *([1], "x", 5),
        ],
    ),
    "logprobs": ("from 0 to 20, or null", [-1, 21]),
    "prompt_logprobs": ("from 0 to 20, or null", [-1, 21]),
    "stop": (
        "a non-empty string or a list of non-empty strings",
        ["", [""], ["x", ""], [1], [None], 5, {"x": 1}],
    ),
    "structured_outputs": ("a StructuredOutputs", [{"regex": "a"}, "json", 1]),
    "pooling": ("mean, last or null", ["max", "", 1, True]),
    "stop_token_ids": ("a list of token ids", [[-1], ["1"], [1.0], [True], 5, "5", {1: 2}]),
}
TYPES: list[tuple[str, str, list[Any]]] = [
    *((f, "an integer", [*NOT_COUNTS, None]) for f in ("n", "min_tokens", "top_k")),
    *(
        (f, "an integer or null", NOT_COUNTS)
        for f in ("max_tokens", "seed", "logprobs", "prompt_logprobs")
    ),
    *(
        (f, "a finite number", NOT_NUMBERS)
        for f in ("temperature", "top_p", "min_p", "repetition_penalty")
    ),
    *((f, "a finite number", NOT_NUMBERS) for f in ("presence_penalty", "frequency_penalty")),
    *(
        (f, "true or false", [0, 1, None, "true"])
        for f in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
    ),
]


def test_every_field_is_covered_here() -> None:
    assert ALLOWED.keys() == FIELDS.keys()
    assert REFUSED.keys() | {field for field, _, _ in TYPES} == FIELDS.keys()


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in ALLOWED.items() for value in values]
)
def test_values_up_to_the_bounds_are_taken(field: str, value: Any) -> None:
    taken = getattr(SamplingParams(**{field: value}), field)
    assert taken == (value or None if field == "logit_bias" else value)


@pytest.mark.parametrize(
    ("field", "allowed", "value"),
    [
        *((f, allowed, value) for f, (allowed, values) in REFUSED.items() for value in values),
        *((f, allowed, value) for f, allowed, values in TYPES for value in values),
    ],
)
def test_anything_else_is_one_sentence_with_the_field_the_value_and_what_is_allowed(
    field: str, allowed: str, value: Any
) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    message = str(caught.value)
    assert message.startswith(f"{field}=")
    assert message.endswith(f": must be {allowed}")
    if not isinstance(value, dict) and len(repr(value)) < 30:
        assert repr(value) in message


@pytest.mark.parametrize("stop", [["x"] * (MAX_STOP_STRINGS + 1), "x" * (MAX_STOP_LENGTH + 1)])
def test_stop_strings_are_bounded_and_the_message_is_short(stop: Any) -> None:
    with pytest.raises(
        RequestError, match="at most 64 strings of at most 1024 characters"
    ) as caught:
        SamplingParams(stop=stop)
    assert len(str(caught.value)) < 300


def test_min_tokens_beyond_max_tokens_is_refused() -> None:
    SamplingParams(min_tokens=5, max_tokens=5)
    SamplingParams(min_tokens=5, max_tokens=None)
    with pytest.raises(RequestError, match=r"min_tokens=6: must be at most max_tokens \(5\)"):
        SamplingParams(min_tokens=6, max_tokens=5)


@pytest.mark.parametrize(
    ("given", "field", "made"),
    [
        ({"stop": "END"}, "stop", ["END"]),
        ({"stop": ("a", "b")}, "stop", ["a", "b"]),
        ({"stop": None}, "stop", []),
        ({"stop_token_ids": (3, 4)}, "stop_token_ids", [3, 4]),
        ({"stop_token_ids": None}, "stop_token_ids", []),
        ({"logit_bias": {"50": 1, 7: -2.5}}, "logit_bias", {50: 1, 7: -2.5}),
    ],
)
def test_what_can_be_written_in_several_ways_has_one_form(
    given: dict[str, Any], field: str, made: Any
) -> None:
    assert getattr(SamplingParams(**given), field) == made


def test_the_callers_lists_and_tables_stay_the_callers() -> None:
    stop, bias = ["a"], {"1": 1.0}
    params = SamplingParams(stop=stop, logit_bias=bias)  # type: ignore[arg-type]  # digits as text
    stop.append("b")
    bias["2"] = 2.0
    assert (params.stop, params.logit_bias) == (["a"], {1: 1.0})


def test_parameters_cannot_be_changed_nor_misspelt() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().n = 2  # type: ignore[misc]  # that is the test
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]  # that is the test


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-9).greedy
    assert not SamplingParams().greedy


@pytest.mark.parametrize("field", ALLOWED)
def test_every_allowed_value_crosses_msgpack_unchanged(field: str) -> None:
    for value in ALLOWED[field]:
        params = SamplingParams(**{field: value})
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_all_fields_cross_msgpack_together_and_defaults_cost_nothing() -> None:
    chosen: dict[str, Any] = {
        field: random.choice(values)
        for field, values in ALLOWED.items()
        if field not in ("max_tokens", "min_tokens")
    }
    if chosen.get("structured_outputs") is not None:
        del chosen["ignore_eos"]  # a grammar says where an output ends
    params = SamplingParams(**chosen)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(SamplingParams())) == {}
