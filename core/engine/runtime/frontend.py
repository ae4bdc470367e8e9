"""What the front end does with a prompt before the loop sees it: tokenize and check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import RequestError
from engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class Frontend:
    """Turns prompts into checked token ids.

    Attributes:
        tokenizer: a transformers fast tokenizer, or None when only ids are served.
        max_model_len: the longest context, in tokens.
        kv_tokens: tokens that the whole KV cache holds.
        vocab_size: ids are below this.
        end_token_ids: the model's end tokens.
    """

    tokenizer: Any
    max_model_len: int
    kv_tokens: int
    vocab_size: int
    end_token_ids: tuple[int, ...]

    def encode(self, prompt: str | list[int]) -> tuple[str | None, list[int]]:
        """Return the prompt's text, if it is text, and its token ids.

        Raises:
            RequestError: it is empty, isn't text or ids, or there is no tokenizer for text.
        """
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError(
                    "prompt: this model is served without a tokenizer; send token ids",
                    param="prompt",
                )
            ids = self.tokenizer(prompt).input_ids
            if not ids:
                raise RequestError("prompt='': must not be empty", param="prompt")
            return prompt, list(ids)
        if not prompt:
            raise RequestError("prompt=[]: must not be empty", param="prompt")
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(f"prompt: {token!r} is no token id", param="prompt")
            if not 0 <= token < self.vocab_size:
                raise RequestError(
                    f"prompt: token id {token} is out of the vocabulary of {self.vocab_size}",
                    param="prompt",
                )
        return None, list(prompt)

    def check(self, ids: list[int], params: SamplingParams) -> None:
        """Check that a request fits the model.

        Raises:
            RequestError: names the parameter that doesn't fit.
        """
        wanted = params.max_tokens or 0
        if len(ids) + wanted > self.max_model_len or len(ids) >= self.max_model_len + (
            params.max_tokens == 0
        ):
            asked = f"{len(ids)} in the prompt"
            asked += f" and {wanted} to generate (max_tokens)" if wanted else ""
            raise RequestError(
                f"This model's maximum context length is {self.max_model_len} tokens, but "
                f"{len(ids) + wanted} were requested: {asked}. Shorten the prompt"
                + (" or lower max_tokens." if wanted else " and leave room for one token."),
                param="max_tokens" if len(ids) < self.max_model_len else "prompt",
            )
        if len(ids) > self.kv_tokens:
            raise RequestError(
                f"prompt: {len(ids)} tokens, but the whole KV cache holds {self.kv_tokens}; "
                "shorten it, or start the engine with more --kv-cache-memory",
                param="prompt",
            )
        if len(ids) + params.min_tokens > self.max_model_len:
            raise RequestError(
                f"min_tokens={params.min_tokens}: with {len(ids)} prompt tokens this is beyond "
                f"the context of {self.max_model_len} tokens",
                param="min_tokens",
            )
        if params.structured_outputs is not None and self.tokenizer is None:
            raise RequestError(
                "structured_outputs: needs a tokenizer, and this model is served without one",
                param="structured_outputs",
            )
        named = [*(params.logit_bias or {}), *params.stop_token_ids]
        for token in named:
            if token >= self.vocab_size:
                field = "logit_bias" if token in (params.logit_bias or {}) else "stop_token_ids"
                raise RequestError(
                    f"{field}: token id {token} is out of the vocabulary of {self.vocab_size}",
                    param=field,
                )
