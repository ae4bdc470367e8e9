"""Turns tokens into text while they come, so that all pieces together are what decode() gives.

`tokenizers.decoders.DecodeStream` does nearly this, but it gives a byte-fallback character away
before its run of byte tokens has ended (an invalid byte later in the run turns all of them into
replacement characters), fails on bytes that aren't UTF-8, and gets slower with each of them. The
text is the tokenizer's own decoding here too, of a few tokens at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import decoders

from engine.errors import ModelError

_REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of a UTF-8 character, so tokens that it can be spread over."""
_CONTEXT = 2 * _LONGEST_CHARACTER
"""Tokens to decode again with new ones where a decoder isn't free of context."""


class Detokenizer:
    """Makes the text streams of one tokenizer.

    Args:
        tokenizer: a transformers `PreTrainedTokenizerFast`.

    Raises:
        ModelError: it isn't a fast tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                f"tokenizer: {type(tokenizer).__name__} isn't a fast tokenizer, and only these "
                "can be used; put the model's tokenizer.json into its folder"
            )
        self.backend = backend
        self.special_ids = frozenset(
            id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.byte_ids = _byte_fallback_ids(backend)
        self.joins_bytes = isinstance(backend.decoder, decoders.ByteLevel)
        """A text is the bytes of its tokens, one after the other: no context is needed."""

    def stream(
        self, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> TextStream:
        """Return the stream of one output.

        Args:
            prompt_token_ids: what the output continues. Decoders that drop the space before a
                text's first word (SentencePiece) see that it isn't the first; byte-level ones
                need none. Without it, the text is exactly `decode` of the output's tokens.
            skip_special_tokens: leave special tokens out.
        """
        context = () if self.joins_bytes else prompt_token_ids[-_CONTEXT:]
        return TextStream(self, context, skip_special_tokens=skip_special_tokens)


class TextStream:
    """The text of one output, token by token.

    Text is held back while a character is incomplete: its bytes may be spread over tokens. It
    comes as soon as the character is whole, or known not to be one.
    """

    __slots__ = (
        "_byte_ids",
        "_context",
        "_cut",
        "_decode",
        "_held",
        "_ignored",
        "_joins_bytes",
        "_known",
        "_shown",
        "_skip",
    )

    def __init__(
        self, detokenizer: Detokenizer, context: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._decode = detokenizer.backend.decode
        self._known = detokenizer.backend.id_to_token
        self._byte_ids = detokenizer.byte_ids
        self._joins_bytes = detokenizer.joins_bytes
        self._skip = skip_special_tokens
        self._ignored = detokenizer.special_ids if skip_special_tokens else frozenset()
        self._context = [id_ for id_ in context if not self._ignores(id_)]
        """Tokens whose text was given away."""
        self._shown = len(self._text(self._context))
        """Characters of the context's text that were."""
        self._cut = False
        """Whether the last one of them wasn't."""
        self._held: list[int] = []

    @property
    def holds(self) -> bool:
        """Whether text may be held back."""
        return self._cut or bool(self._held)

    def push(self, token_id: int) -> str:
        """Take a token and return the text that is settled by it, which may be none."""
        if self._ignores(token_id):
            return ""
        held = self._held
        held.append(token_id)
        if token_id in self._byte_ids:
            return ""
        text = self._text(self._context + held) if self._context else self._text(held)
        if not text.endswith(_REPLACEMENT):
            return self._settle(text)
        if len(held) <= _LONGEST_CHARACTER:
            return ""
        return self._settle_but_last(text)

    def tail(self) -> str:
        """Return the text of what is held back, as it is if the output ends here."""
        return self._text(self._context + self._held)[self._shown :]

    def flush(self) -> str:
        """Return the tail and hold nothing back any more."""
        tail = self.tail()
        self._context, self._held, self._shown, self._cut = [], [], 0, False
        return tail

    def _ignores(self, token_id: int) -> bool:
        """Whether decode() leaves the token out: a special one, or none of the vocabulary."""
        return token_id in self._ignored or self._known(token_id) is None

    def _text(self, ids: list[int]) -> str:
        text: str = self._decode(ids, skip_special_tokens=self._skip)
        return text

    def _settle(self, text: str) -> str:
        new = text[self._shown :]
        if self._joins_bytes:
            self._context, self._shown = [], 0
        else:
            # The next token isn't the first of a text: keep some that have text.
            alone = self._text(self._held)
            if alone:
                self._context, self._shown = self._held, len(alone)
            else:
                self._context = (self._context + self._held)[-_CONTEXT:]
                self._shown = len(self._text(self._context))
        self._held, self._cut = [], False
        return new

    def _settle_but_last(self, text: str) -> str:
        """Give up on bytes that can't become a character; the last may be the start of one."""
        new = text[self._shown : -1]
        # Four bytes on, it no longer matters whether decoding began within a character.
        self._context = (self._context + self._held)[-_CONTEXT:]
        self._shown = len(self._text(self._context)) - 1
        self._held, self._cut = [], True
        return new


def _byte_fallback_ids(backend: Any) -> frozenset[int]:
    """Return the ids of the tokens that stand for single bytes, if there are such.

    A run of them is decoded as a whole: to text if all of it is UTF-8, otherwise to one
    replacement character for each.
    """
    ids = [backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    euro = [ids[byte] for byte in "€".encode()]
    if None in euro or backend.decode(euro, skip_special_tokens=False) != "€":
        return frozenset()
    return frozenset(id_ for id_ in ids if id_ is not None)
