"""A completion that is fed with tokens as the loop would feed it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerFast

from engine.request import (
    CompletionOutput,
    EngineOutput,
    EngineRequest,
    Logprob,
    PositionLogprobs,
    RequestOutput,
)
from engine.runtime.output_processor import OutputProcessor
from engine.sampling_params import SamplingParams
from engine.testing.tokenizers import byte_level_tokenizer, id_of

PROMPT = [5, 6]


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of `letters`."""
    return byte_level_tokenizer()


def letters(text: str) -> list[int]:
    """Return one token for each letter of a text of ASCII letters, spaces and newlines."""
    return [id_of(tokenizer(), {" ": "Ġ", "\n": "Ċ"}.get(c, c)) for c in text]


def start(processor: OutputProcessor, **params: Any) -> list[EngineRequest]:
    """Register the request `r` for a prompt of two tokens and return its sequences."""
    made = SamplingParams(max_tokens=None, **params)
    return processor.expand("r", None, PROMPT, made, [id_of(tokenizer(), "</s>")])


def position(token: int) -> PositionLogprobs:
    """Return log-probabilities by which a token can be recognised."""
    return [Logprob(token, -float(token), 1)]


class Run:
    """One completion.

    Args:
        tokenizer: of its text; None for token ids only.
        delta: take what is new, or everything so far.
        **params: fields of `SamplingParams`.

    Attributes:
        results: all that users got.
        aborted: sequences that the loop was told to end.
    """

    def __init__(self, tokenizer: Any, *, delta: bool = True, **params: Any) -> None:
        self.processor = OutputProcessor(tokenizer)
        self.child = start(self.processor, **params)[0].request_id
        self.delta = delta
        self.results: list[RequestOutput] = []
        self.aborted: list[str] = []

    def feed(
        self, ids: list[int], reason: str | None = None, **fields: Any
    ) -> RequestOutput | None:
        """Take an output of the loop in; return what the user gets for it."""
        output = EngineOutput(
            request_id=self.child,
            token_ids=ids,
            logprobs=[position(id_) for id_ in ids],
            finish_reason=reason,
            **fields,
        )
        results, aborts = self.processor.process([output], delta=self.delta)
        self.results += results
        self.aborted += aborts
        return results[0] if results else None

    def feed_all(self, chunks: Iterable[list[int]], reason: str | None = "length") -> Run:
        """Take chunks of tokens in until it ends; the last one comes with the reason."""
        last = len(chunks := list(chunks)) - 1
        for index, chunk in enumerate(chunks):
            if not self.ended:
                self.feed(chunk, reason if index == last else None)
        return self

    @property
    def ended(self) -> bool:
        """Whether the user knows that it has ended."""
        return bool(self.results) and self.results[-1].finished

    @property
    def whole(self) -> CompletionOutput:
        """Everything, put together of the deltas if it came in deltas."""
        if not self.delta:
            return self.results[-1].outputs[0]
        parts = [part for result in self.results for part in result.outputs]
        last = parts[-1]
        return CompletionOutput(
            0,
            "".join(part.text for part in parts),
            [id_ for part in parts for id_ in part.token_ids],
            None if last.logprobs is None else [p for part in parts for p in part.logprobs or []],
            last.finish_reason,
            last.stop_reason,
        )

    @property
    def texts(self) -> list[str]:
        """The text of each result."""
        return [result.outputs[0].text for result in self.results]


def one_by_one(ids: list[int]) -> list[list[int]]:
    """Return chunks of one token."""
    return [[id_] for id_ in ids]
