"""What a completion and a chat completion have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from engine.errors import RequestError
from engine.sampling_params import SamplingParams
from engine_server.errors import ApiError, from_engine
from engine_server.field_rules import Integer, Number, Refused
from engine_server.request_body import TAG, Body
from engine_server.structure_fields import Structure, StructureFields


class WithoutEffect(Body):
    """Parameters of OpenAI's API that have no meaning for a server of one's own.

    They name customers, tiers, caches and storage of a hosted service, or give hints that change
    no result. Clients send them unasked, so they are accepted, whatever they hold.
    """

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    moderation: Any = None
    prediction: Any = None
    verbosity: Any = None


class StreamOptions(Body):
    """What a stream tells besides the text."""

    include_usage: bool | None = None
    """Send the token counts in one last chunk."""
    continuous_usage_stats: bool | None = None
    """Send the token counts so far in every chunk."""
    include_obfuscation: Any = None
    """Accepted without effect: chunks are never padded."""


def _stop_kind(value: Any) -> str | None:
    kinds: dict[object, str] = {str: f"{TAG}one", list: f"{TAG}several"}
    return kinds.get(type(value))


Stop = Annotated[
    Annotated[str, Tag(f"{TAG}one")] | Annotated[list[str], Tag(f"{TAG}several")],
    Discriminator(
        _stop_kind,
        custom_error_type="stop_type",
        custom_error_message="must be a string or an array of strings",
    ),
]


class SamplingFields(WithoutEffect, StructureFields):
    """Sampling and streaming; null stands for the default everywhere."""

    model: str | None = None
    """Name of the model; the one that is served when omitted."""
    stream: bool | None = None
    """Send the result piece by piece, as server-sent events."""
    stream_options: StreamOptions | None = None
    """What a stream tells besides the text."""
    n: Integer | None = None
    """Choices to make for each prompt."""
    max_tokens: Integer | None = None
    """Most tokens to make."""
    min_tokens: Integer | None = None
    """No stop token is chosen before this many tokens."""
    temperature: Number | None = None
    """0 takes the likeliest token; 1 is the model's own distribution."""
    top_p: Number | None = None
    """Keep the likeliest tokens whose probabilities sum to at least this."""
    top_k: Integer | None = None
    """Keep this many of the likeliest tokens; 0 or -1 keeps all."""
    min_p: Number | None = None
    """Drop tokens less likely than this share of the likeliest."""
    repetition_penalty: Number | None = None
    """Above 1 makes tokens of prompt and output less likely."""
    presence_penalty: Number | None = None
    """Subtracted once from the logit of each token in the output."""
    frequency_penalty: Number | None = None
    """Subtracted for each occurrence of a token in the output."""
    seed: Integer | None = None
    """Makes the result repeatable."""
    logit_bias: dict[Integer, Number] | None = None
    """Added to logits, by token id."""
    stop: Stop | None = None
    """Strings that end the output; they are cut from it."""
    stop_token_ids: list[Integer] | None = None
    """Tokens that end the output."""
    include_stop_str_in_output: bool | None = None
    """Keep the stop string in the output."""
    ignore_eos: bool | None = None
    """Don't end at the model's end tokens."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text."""
    prompt_logprobs: Integer | None = None
    """Log-probabilities of the prompt's tokens; not in a stream."""
    return_token_ids: bool | None = None
    """Return the token ids of prompt and choices too."""
    priority: Annotated[
        Any, Refused("requests are served in the order in which they come", (0,))
    ] = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk has the token counts."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "only allowed when stream is true")
        if self.stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs", "not sent in a stream; set stream to false")


_SAME_NAME = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
)


def sampling_params(
    fields: SamplingFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    spelling: Mapping[str, str],
    structure: Structure | None,
    **more: Any,
) -> SamplingParams:
    """Turn a request into the engine's parameters.

    Args:
        fields: the request; null fields take the engine's defaults.
        max_tokens: as the endpoint understands it.
        logprobs: alternatives per position.
        prompt_logprobs: the same for the prompt.
        spelling: the client's names of parameters that the engine calls differently.
        structure: what the output must look like.
        **more: parameters that the server sets itself.

    Raises:
        ApiError: a value is out of range; names the parameter.
    """
    given = {name: value for name in _SAME_NAME if (value := getattr(fields, name)) is not None}
    try:
        return SamplingParams(
            **{**given, **more},
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=None if structure is None else structure.asked,
        )
    except RequestError as error:
        raise from_engine(error, spelling) from None


def invalid(param: str, why: str) -> ApiError:
    """Return the refusal of one parameter."""
    return ApiError(400, f"{param}: {why}", param=param, code="invalid_value")
