"""The pieces of a streamed text together are what the tokenizer gives for the whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from engine.errors import ModelError
from engine.runtime.detokenizer import Detokenizer, TextStream
from engine.testing.tokenizers import (
    byte_level_tokenizer,
    fast_tokenizer,
    id_of,
    sentencepiece_tokenizer,
)


def wrapped_byte_level() -> PreTrainedTokenizerFast:
    """The same decoding, but not recognisable as free of context."""
    made = byte_level_tokenizer().backend_tokenizer
    made.decoder = decoders.Sequence([decoders.ByteLevel()])
    return fast_tokenizer(made)


def metaspace() -> PreTrainedTokenizerFast:
    backend = Tokenizer(
        models.Unigram(
            [(w, -1.0) for w in ["<unk>", "▁", "▁the", "▁cat", "s", "at", "▁▁", "学"]], 0
        )
    )
    backend.decoder = decoders.Metaspace()
    return fast_tokenizer(backend)


def wordpiece() -> PreTrainedTokenizerFast:
    words = ["[UNK]", "the", "cat", "##s", "##at", ".", "'", "n't"]
    backend = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return fast_tokenizer(backend)


def with_a_token_without_text() -> PreTrainedTokenizerFast:
    words = ["@@", "▁the", "▁cat", "s"]
    backend = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("@@", ""),
            decoders.Replace("▁", " "),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return fast_tokenizer(backend)


def no_decoder() -> PreTrainedTokenizerFast:
    return fast_tokenizer(
        Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[UNK]", "the", "cat"])}, "[UNK]"))
    )


MAKERS: list[Callable[[], PreTrainedTokenizerFast]] = [
    byte_level_tokenizer,
    wrapped_byte_level,
    sentencepiece_tokenizer,
    metaspace,
    wordpiece,
    with_a_token_without_text,
    no_decoder,
]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    made: PreTrainedTokenizerFast = request.param()
    return made


made_once = functools.cache(lambda make: make())


def pieces(stream: TextStream, ids: list[int]) -> list[str]:
    return [*(stream.push(id_) for id_ in ids), stream.flush()]


def some_ids(tokenizer: Any) -> st.SearchStrategy[list[int]]:
    """Ids of any kind, and those of rare kinds often: special, added, unknown."""
    size = len(tokenizer)
    return st.lists(
        st.integers(0, size + 3) | st.integers(size - 3, size + 3) | st.integers(0, 12), max_size=40
    )


many = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@many
@given(data=st.data(), skip=st.booleans())
def test_joined_pieces_are_the_decoded_whole(
    tokenizer: Any, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(some_ids(tokenizer))
    stream = Detokenizer(tokenizer).stream(skip_special_tokens=skip)
    assert "".join(pieces(stream, ids)) == tokenizer.decode(ids, skip_special_tokens=skip)


@many
@given(data=st.data(), make=st.sampled_from([byte_level_tokenizer, wrapped_byte_level]))
def test_broken_and_whole_characters_may_follow_each_other(
    data: st.DataObject, make: Callable[[], PreTrainedTokenizerFast]
) -> None:
    made = made_once(make)
    spelled = "âĤ¬ðŁ¦Ģÿa"  # the bytes of a euro sign and of an emoji, an invalid one, a letter
    ids = data.draw(st.lists(st.sampled_from([id_of(made, char) for char in spelled]), max_size=60))
    assert "".join(pieces(Detokenizer(made).stream(), ids)) == made.decode(ids)


@many
@given(data=st.data(), skip=st.booleans())
def test_the_tail_is_what_ending_here_would_add(
    tokenizer: Any, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(some_ids(tokenizer))
    stream = Detokenizer(tokenizer).stream(skip_special_tokens=skip)
    text = ""
    for count, id_ in enumerate(ids, start=1):
        text += stream.push(id_)
        assert text + stream.tail() == tokenizer.decode(ids[:count], skip_special_tokens=skip)
        assert stream.holds or not stream.tail()


@many
@given(data=st.data(), skip=st.booleans())
def test_after_a_prompt_the_text_continues_it(
    tokenizer: Any, data: st.DataObject, skip: bool
) -> None:
    vocabulary = tokenizer.get_vocab()
    prompt = [vocabulary[word] for word in ("▁the", "the", "▁cat", "cat") if word in vocabulary]
    ids = data.draw(some_ids(tokenizer))
    stream = Detokenizer(tokenizer).stream(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    assert (
        tokenizer.decode(prompt, skip_special_tokens=skip) + "".join(pieces(stream, ids)) == whole
    )


def test_a_word_after_a_prompt_keeps_its_space_and_the_first_of_a_text_has_none() -> None:
    made = sentencepiece_tokenizer()
    cat = id_of(made, "▁cat")
    the = id_of(made, "▁the")
    assert pieces(Detokenizer(made).stream(), [cat, cat]) == ["cat", " cat", ""]
    assert pieces(Detokenizer(made).stream([the]), [cat]) == [" cat", ""]
    bos = id_of(made, "<s>")
    assert pieces(Detokenizer(made).stream([bos]), [cat]) == ["cat", ""]


def test_a_character_spread_over_tokens_comes_whole() -> None:
    made = byte_level_tokenizer()
    ids = [id_of(made, c) for c in "ðŁ¦Ģ"]  # four bytes of one emoji
    assert made.decode(ids) == "🦀"
    stream = Detokenizer(made).stream()
    assert [stream.push(id_) for id_ in ids] == ["", "", "", "🦀"]
    assert not stream.holds


def test_an_incomplete_character_is_flushed_once_as_decode_shows_it() -> None:
    made = byte_level_tokenizer()
    ids = [id_of(made, c) for c in "aðŁ"]
    stream = Detokenizer(made).stream()
    assert [stream.push(id_) for id_ in ids] == ["a", "", ""]
    assert (stream.flush(), stream.flush()) == ("\ufffd", "")


def test_byte_tokens_wait_for_the_end_of_their_run() -> None:
    made = sentencepiece_tokenizer()
    euro = [id_of(made, f"<0x{byte:02X}>") for byte in "€".encode()]
    bad = id_of(made, "<0xFF>")
    s = id_of(made, "s")
    assert pieces(Detokenizer(made).stream(), [*euro, s]) == ["", "", "", "€s", ""]
    assert pieces(Detokenizer(made).stream(), [*euro, bad, s]) == [
        "",
        "",
        "",
        "",
        "\ufffd" * 4 + "s",
        "",
    ]


@pytest.mark.parametrize(
    "make", [byte_level_tokenizer, wrapped_byte_level, sentencepiece_tokenizer]
)
def test_bytes_that_are_no_text_are_decoded_a_few_at_a_time(
    make: Callable[[], PreTrainedTokenizerFast], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    spelled = "ÿ" if make is not sentencepiece_tokenizer else "\ufffd"
    stream = Detokenizer(made).stream()
    decode, lengths = stream._decode, []

    def counted(ids: list[int], **options: Any) -> str:
        lengths.append(len(ids))
        return str(decode(ids, **options))

    stream._decode = counted
    token = id_of(made, spelled)
    got = pieces(stream, [token] * 300)
    assert "".join(got) == "\ufffd" * 300
    assert max(lengths) <= 16
    assert max(len(piece) for piece in got) <= 8


def test_a_slow_tokenizer_is_refused_with_the_remedy() -> None:
    with pytest.raises(ModelError, match=r"object isn't a fast tokenizer.*tokenizer\.json"):
        Detokenizer(object())
