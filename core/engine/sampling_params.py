"""What a user may ask of one request's sampling; checked when it is made."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from engine.errors import RequestError
from engine.structured_outputs import StructuredOutputs

MAX_LOGPROBS = 20
"""The most alternatives per position that a request may ask for, as OpenAI's API allows."""
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
"""Characters of a stop string."""
_MAX_COUNT = 2**31 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tokens of one request are chosen.

    Attributes:
        n: completions to make of one prompt.
        max_tokens: most tokens to make; None means up to the context's end.
        min_tokens: no stop token is chosen before this many tokens.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the likeliest tokens whose probabilities sum to at least this.
        min_p: drop tokens less likely than this share of the likeliest.
        repetition_penalty: tokens of prompt and output: positive logits are divided by it,
            negative ones multiplied (Keskar et al. 2019, CTRL).
        presence_penalty: subtracted once from the logit of each token in the output.
        frequency_penalty: subtracted for each occurrence of a token in the output.
        seed: makes this request's draws repeatable, whatever runs beside it.
        logit_bias: added to logits, by token id (or its decimal digits).
        logprobs: log-probabilities of this many likeliest tokens (and the chosen one) at each
            position; None for none.
        prompt_logprobs: the same for the prompt's tokens.
        stop: strings that end the output (or one string); they are cut from it.
        stop_token_ids: tokens that end the output; they are in its token ids, not in its text.
        include_stop_str_in_output: keep the stop string, or the text of the stop token.
        ignore_eos: don't end at the model's end tokens.
        skip_special_tokens: leave special tokens out of the text.
        structured_outputs: what the whole text must look like; None for anything.
        pooling: `mean` or `last` makes a vector of the prompt's hidden states, and no tokens
            (`max_tokens` must be 0, `n` 1).
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    pooling: str | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            RequestError: names the field, its value and what is allowed.
        """
        _normalise(self)
        _check_types(self)
        _check_ranges(self)
        _check_structure(self)
        _check_pooling(self)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken without a draw."""
        return self.temperature == 0.0


_INTEGERS = ("n", "min_tokens", "top_k")
_OPTIONAL_INTEGERS = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_SWITCHES = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")


def _refuse(field: str, value: Any, allowed: str) -> RequestError:
    return RequestError(f"{field}={reprlib.repr(value)}: must be {allowed}", param=field)


def _normalise(params: SamplingParams) -> None:
    """Give what may be written in several ways one form; what is wrong is left as it is."""
    if isinstance(params.stop, str):
        force_setattr(params, "stop", [params.stop])
    for name in ("stop", "stop_token_ids"):
        value = getattr(params, name)
        if value is None or isinstance(value, tuple | list):
            force_setattr(params, name, list(value or ()))
    bias = params.logit_bias
    if isinstance(bias, dict):
        keys = (int(k) if isinstance(k, str) and k.isdecimal() else k for k in bias)
        force_setattr(params, "logit_bias", dict(zip(keys, bias.values(), strict=True)) or None)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _check_types(params: SamplingParams) -> None:
    for name in _INTEGERS:
        if not _is_int(value := getattr(params, name)):
            raise _refuse(name, value, "an integer")
    for name in _OPTIONAL_INTEGERS:
        if (value := getattr(params, name)) is not None and not _is_int(value):
            raise _refuse(name, value, "an integer or null")
    for name in _NUMBERS:
        if not _is_number(value := getattr(params, name)):
            raise _refuse(name, value, "a finite number")
    for name in _SWITCHES:
        if not isinstance(value := getattr(params, name), bool):
            raise _refuse(name, value, "true or false")
    _check_collections(params)


def _check_collections(params: SamplingParams) -> None:
    stop, token_ids, bias = params.stop, params.stop_token_ids, params.logit_bias
    if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
        raise _refuse("stop", stop, "a non-empty string or a list of non-empty strings")
    if len(stop) > MAX_STOP_STRINGS or any(len(s) > MAX_STOP_LENGTH for s in stop):
        allowed = f"at most {MAX_STOP_STRINGS} strings of at most {MAX_STOP_LENGTH} characters"
        raise _refuse("stop", stop, allowed)
    if not isinstance(token_ids, list) or not all(_is_int(t) and t >= 0 for t in token_ids):
        raise _refuse("stop_token_ids", token_ids, "a list of token ids")
    allowed = "a table from token ids to numbers from -100 to 100"
    if not isinstance(bias, dict | None):
        raise _refuse("logit_bias", bias, allowed)
    if not isinstance(params.structured_outputs, StructuredOutputs | None):
        raise _refuse("structured_outputs", params.structured_outputs, "a StructuredOutputs")
    for token, number in (bias or {}).items():
        if not _is_int(token) or token < 0 or not _is_number(number) or abs(number) > 100:
            raise _refuse("logit_bias", {token: number}, allowed)


def _check_ranges(p: SamplingParams) -> None:
    rules = (
        ("n", 1 <= p.n <= 128, "from 1 to 128"),
        ("max_tokens", _count_ok(p.max_tokens), f"0 or more (up to {_MAX_COUNT}), or null"),
        ("min_tokens", _count_ok(p.min_tokens), f"0 or more (up to {_MAX_COUNT})"),
        ("temperature", 0 <= p.temperature <= 100, "from 0 to 100"),
        ("top_k", -1 <= p.top_k <= _MAX_COUNT, f"-1, 0 (both: off) or more (up to {_MAX_COUNT})"),
        ("top_p", 0 < p.top_p <= 1, "more than 0 and at most 1"),
        ("min_p", 0 <= p.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", 0 < p.repetition_penalty <= 10, "more than 0 and at most 10"),
        ("presence_penalty", -2 <= p.presence_penalty <= 2, "from -2 to 2"),
        ("frequency_penalty", -2 <= p.frequency_penalty <= 2, "from -2 to 2"),
        ("logprobs", _logprobs_ok(p.logprobs), f"from 0 to {MAX_LOGPROBS}, or null"),
        ("prompt_logprobs", _logprobs_ok(p.prompt_logprobs), f"from 0 to {MAX_LOGPROBS}, or null"),
        ("seed", p.seed is None or -(2**63) <= p.seed < 2**63, "a 64-bit integer or null"),
    )
    for name, ok, allowed in rules:
        if not ok:
            raise _refuse(name, getattr(p, name), allowed)
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise _refuse("min_tokens", p.min_tokens, f"at most max_tokens ({p.max_tokens})")


def _check_structure(p: SamplingParams) -> None:
    """A grammar decides where the text ends, so nothing else may forbid that."""
    for name, contradicts in (("ignore_eos", p.ignore_eos), ("min_tokens", p.min_tokens > 0)):
        if p.structured_outputs is not None and contradicts:
            raise _refuse(name, getattr(p, name), "left out with structured_outputs")


def _check_pooling(p: SamplingParams) -> None:
    if p.pooling is None:
        return
    if p.pooling not in ("mean", "last"):
        raise _refuse("pooling", p.pooling, "mean, last or null")
    for name, wanted in (("max_tokens", 0), ("n", 1), ("prompt_logprobs", None)):
        if getattr(p, name) != wanted:
            raise _refuse(name, getattr(p, name), f"{wanted} with pooling")


def _count_ok(value: int | None) -> bool:
    return value is None or 0 <= value <= _MAX_COUNT


def _logprobs_ok(value: int | None) -> bool:
    return value is None or 0 <= value <= MAX_LOGPROBS
