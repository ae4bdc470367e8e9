"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.request import Logprob, PositionLogprobs
from engine_server.responses import (
    ChatLogprobs,
    ChosenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
)
from engine_server.token_text import TokenText

_LEAST = -9999.0
"""What OpenAI's API says of a token that can't occur; JSON has no infinity."""


class CompletionLogprobsWriter:
    """Writes the log-probabilities of one choice, chunk by chunk.

    Args:
        tokens: the text of tokens.
        count: alternatives to name at each position.
    """

    def __init__(self, tokens: TokenText, count: int) -> None:
        self._tokens = tokens
        self._count = count
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(
        self, token_ids: Sequence[int], entries: Sequence[PositionLogprobs | None]
    ) -> CompletionLogprobs:
        """Return the next positions; offsets count characters from the choice's beginning.

        Args:
            token_ids: the tokens.
            entries: of each token, what is known of its position.
        """
        offsets: list[int] = []
        chosen: list[float | None] = []
        texts: list[str] = []
        tops: list[dict[str, float] | None] = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokens.utf8(token_id)))
            texts.append(self._tokens.text(token_id))
            chosen.append(None if entry is None else _finite(entry[0]))
            tops.append(None if entry is None else self._top(entry))
        return CompletionLogprobs(offsets, chosen, texts, tops)

    def _top(self, entry: PositionLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        # The chosen token comes last, so that its likelier namesakes keep their place.
        for item in [*entry[1 : 1 + self._count], entry[0]]:
            top.setdefault(self._tokens.text(item.token_id), _finite(item))
        return top


def chat_logprobs(
    entries: Sequence[PositionLogprobs], count: int, tokens: TokenText
) -> ChatLogprobs:
    """Return the positions in the chat's shape.

    Args:
        entries: of each token, what is known of its position.
        count: alternatives to name.
        tokens: the text of tokens.
    """
    return ChatLogprobs([_chosen(entry, count, tokens) for entry in entries])


def prompt_logprobs(
    entries: Sequence[PositionLogprobs | None], count: int, tokens: TokenText
) -> PromptLogprobs:
    """Return what is known of the prompt's tokens, by token id."""
    return [
        None
        if entry is None
        else {
            str(item.token_id): PromptLogprob(_finite(item), item.rank, tokens.text(item.token_id))
            for item in entry[: 1 + count]
        }
        for entry in entries
    ]


def _chosen(entry: PositionLogprobs, count: int, tokens: TokenText) -> ChosenLogprob:
    top = [_named(item, tokens) for item in entry[1 : 1 + count]]
    first = _named(entry[0], tokens)
    return ChosenLogprob(first.token, first.logprob, first.bytes, top)


def _named(item: Logprob, tokens: TokenText) -> TokenLogprob:
    data = tokens.utf8(item.token_id)
    return TokenLogprob(tokens.text(item.token_id), _finite(item), list(data) or None)


def _finite(item: Logprob) -> float:
    return max(item.logprob, _LEAST)
