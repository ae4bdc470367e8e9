"""The tokens of a GGUF file: their texts, their types, and which of them are special."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gguf import TokenType

from engine.errors import ModelError
from engine_weights_gguf.reader import GGUFFile

_PREFIX = "tokenizer.ggml."
# What ends a turn or a document in the chat formats in use. Files name one end token, and a
# model that was trained on several emits any of them.
_END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
    }
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens, by id.

    Attributes:
        texts: each token's text; byte-level vocabularies write each byte as a letter.
        types: each token's type.
    """

    texts: list[str]
    types: list[int]

    def of_type(self, *types: TokenType) -> list[int]:
        """Return the ids of the tokens that have one of the types."""
        wanted = {int(kind) for kind in types}
        return [token for token, kind in enumerate(self.types) if kind in wanted]


def read_vocabulary(file: GGUFFile) -> Vocabulary | None:
    """Return the file's tokens, or None if it has none.

    Raises:
        ModelError: the lists are of different lengths or name a token twice.
    """
    texts = file.metadata.get(f"{_PREFIX}tokens")
    if texts is None:
        return None
    types = file.metadata.get(f"{_PREFIX}token_type", [int(TokenType.NORMAL)] * len(texts))
    if len(types) != len(texts) or len(set(texts)) != len(texts):
        raise ModelError(
            f"{file.path}: its vocabulary is inconsistent ({len(texts)} tokens, "
            f"{len(set(texts))} different, {len(types)} types); convert the model again"
        )
    return Vocabulary(texts, types)


def special_id(file: GGUFFile, key: str, size: int) -> int | None:
    """Return a special token's id (`bos_token_id`, …), or None if the file names none.

    Raises:
        ModelError: it is no id of a vocabulary of `size` tokens.
    """
    value = file.metadata.get(_PREFIX + key)
    if value is not None and (not isinstance(value, int) or not 0 <= value < size):
        raise ModelError(
            f"{file.path}: {_PREFIX}{key}={value!r} is no id of its {size} tokens; convert the "
            "model again"
        )
    return value


def read_special_ids(file: GGUFFile) -> dict[str, Any]:
    """Return the configuration's `bos_token_id`, `eos_token_id` (all end tokens), `pad_token_id`.

    Raises:
        ModelError: the vocabulary or an id is invalid.
    """
    vocabulary = read_vocabulary(file)
    if vocabulary is None:
        return {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    size = len(vocabulary.texts)
    ends = {special_id(file, key, size) for key in _END_KEYS} - {None}
    ends |= {
        token
        for token in vocabulary.of_type(TokenType.CONTROL)
        if vocabulary.texts[token] in _END_TEXTS
    }
    return {
        "bos_token_id": special_id(file, "bos_token_id", size),
        "eos_token_id": sorted(token for token in ends if token is not None) or None,
        "pad_token_id": special_id(file, "padding_token_id", size),
    }
