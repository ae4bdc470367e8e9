"""The text and bytes of single tokens, for each way in which tokenizers spell them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.errors import RequestError
from engine_server.token_text import TokenText

TEXT = "Grüße, 😀\n\t ok \u2028 \x7f"


def test_byte_level_tokens_join_to_the_bytes_of_the_text(tokenizer: Any) -> None:
    tokens = TokenText(tokenizer)
    ids = tokenizer(TEXT).input_ids
    assert b"".join(tokens.utf8(i) for i in ids) == TEXT.encode()
    assert tokens.join(ids) == TEXT


def test_every_byte_has_one_token(tokenizer: Any) -> None:
    tokens = TokenText(tokenizer)
    assert sorted(tokens.utf8(i) for i in range(256)) == [bytes([b]) for b in range(256)]


def test_half_a_character_is_written_as_bytes(tokenizer: Any) -> None:
    tokens = TokenText(tokenizer)
    assert [tokens.text(i) for i in tokenizer("é!").input_ids] == [
        "bytes:\\xc3",
        "bytes:\\xa9",
        "!",
    ]


def test_special_tokens_are_written_as_they_are(tokenizer: Any) -> None:
    assert TokenText(tokenizer).text(256) == "<|end|>"


def test_an_id_without_a_token_is_empty(tokenizer: Any) -> None:
    assert TokenText(tokenizer).text(5000) == ""


@pytest.fixture
def piece_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that spells spaces ▁ and falls back to bytes, as SentencePiece does."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "h", "i", "▁h", "▁hi"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "h"), ("▁h", "i")]
    model = models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_pieces_keep_their_space_and_bytes_fall_back(
    piece_tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokens = TokenText(piece_tokenizer)
    ids = piece_tokenizer(" hi é").input_ids
    assert tokens.text(ids[0]) == " hi"
    assert b"".join(tokens.utf8(i) for i in ids) == " hi é".encode()
    assert tokens.text(ids[-1]) == "bytes:\\xa9"


def test_without_a_tokenizer_ids_stand_for_tokens() -> None:
    tokens = TokenText(None)
    assert (tokens.text(7), tokens.utf8(7)) == ("token_id:7", b"")
    with pytest.raises(RequestError):
        tokens.join([7])
