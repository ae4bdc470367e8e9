"""The body of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from engine.sampling_params import SamplingParams
from engine_server.field_rules import Integer, Refused
from engine_server.request_body import TAG
from engine_server.request_fields import SamplingFields, invalid, sampling_params

_DEFAULT_MAX_TOKENS = 16
"""As in OpenAI's API."""

PROMPT = "must be a string, an array of strings, an array of token ids or an array of such arrays"


def prompt_kind(value: Any) -> str | None:
    """Return the tag of the kind of prompt that a value is; None when it is none."""
    if isinstance(value, str):
        return f"{TAG}text"
    if not isinstance(value, list) or not value:
        return None
    kinds: dict[object, str] = {str: f"{TAG}texts", int: f"{TAG}ids", list: f"{TAG}several ids"}
    return kinds.get(type(value[0]))


class CompletionRequest(SamplingFields):
    """Continue one or several prompts."""

    prompt: Annotated[
        Annotated[str, Tag(f"{TAG}text")]
        | Annotated[list[str], Tag(f"{TAG}texts")]
        | Annotated[list[Integer], Tag(f"{TAG}ids")]
        | Annotated[list[list[Integer]], Tag(f"{TAG}several ids")],
        Discriminator(prompt_kind, custom_error_type="prompt_type", custom_error_message=PROMPT),
    ]
    """Text or token ids to continue, one prompt or several."""
    echo: bool | None = None
    """Return the prompt before what is made."""
    logprobs: Integer | None = None
    """Log-probabilities of this many likeliest tokens at each position."""
    best_of: Integer | None = None
    """Must equal n: nothing is made that isn't returned."""
    suffix: Annotated[Any, Refused("filling in before a suffix isn't supported")] = None

    def check(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        super().check()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise invalid("best_of", f"must equal n ({self.n or 1}); leave it out")

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, one or several."""
        given: Any = self.prompt
        one = isinstance(given, str) or isinstance(given[0], int)
        return [given] if one else list(given)

    def sampling(self) -> tuple[SamplingParams, Mapping[str, str]]:
        """Return the engine's parameters, and the client's names of what it calls otherwise.

        Raises:
            ApiError: a value is out of range.
        """
        prompt_logprobs = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            prompt_logprobs = max(self.logprobs, prompt_logprobs or 0)
        structure = self.structure()
        spelling = structure.spelling if structure else {}
        params = sampling_params(
            self,
            max_tokens=_DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=prompt_logprobs,
            spelling=spelling,
            structure=structure,
        )
        return params, spelling
