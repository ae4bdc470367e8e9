"""Stop strings: where text is cut, what waits for them, and when they count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.runtime.stop_strings import StopMatcher, StopStrings
from engine.testing.completions import PROMPT, Run, letters, one_by_one, position, tokenizer
from engine.testing.tokenizers import id_of, sentencepiece_tokenizer

TOKENIZER = tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()


@pytest.mark.parametrize(
    ("text", "stop", "texts", "found"),
    [
        # split over one and several tokens
        ("ab!", ["!"], ["a", "b", ""], "!"),
        ("abEND", ["END"], ["a", "b", "", "", ""], "END"),
        # a false prefix is let go as soon as it is one
        ("aEN!EMEND", ["END"], ["a", "", "", "EN!", "", "EM", "", "", ""], "END"),
        # a false prefix whose end is a true one
        ("aaab", ["aab"], ["", "", "a", ""], "aab"),
        # overlapping: the one that is complete first, though another began earlier
        ("hello world", ["lo wor", "o"], ["h", "e", "", "l", "l"], "o"),
        ("xabcd", ["abcd", "bc"], ["x", "", "", "a"], "bc"),
        # several complete at the same place: the longest
        ("xabc", ["c", "abc", "bc"], ["x", "", "", ""], "abc"),
        # one is the beginning of another
        ("xab", ["a", "ab"], ["x", ""], "a"),
        # never complete: the rest comes with the end
        ("abEN", ["END"], ["a", "b", "", "EN"], None),
    ],
)
def test_text_is_cut_right_before_the_stop_string_and_only_a_true_prefix_waits(
    text: str, stop: list[str], texts: list[str], found: str | None
) -> None:
    run = Run(TOKENIZER, stop=stop).feed_all(one_by_one(letters(text)))
    assert run.texts == texts
    assert run.whole.stop_reason == found
    assert run.whole.finish_reason == ("stop" if found else "length")
    assert run.whole.token_ids == letters(text)[: len(texts)]


def test_the_stop_string_can_be_kept() -> None:
    run = Run(TOKENIZER, stop=["lo", "xyz"], include_stop_str_in_output=True)
    run.feed_all(one_by_one(letters("hello world")))
    assert (run.whole.text, run.whole.stop_reason) == ("hello", "lo")


def test_the_loop_is_told_to_end_a_sequence_that_it_has_not_ended_itself() -> None:
    run = Run(TOKENIZER, stop=["b"])
    run.feed(letters("a"))
    assert run.aborted == []
    run.feed(letters("b"))
    assert run.aborted == [run.child]
    assert run.feed(letters("c")) is None  # the step that was under way
    at_the_end = Run(TOKENIZER, stop=["b"])
    at_the_end.feed(letters("b"), "length")
    assert at_the_end.aborted == []


def test_a_stop_string_that_is_complete_at_max_tokens_is_the_reason() -> None:
    run = Run(TOKENIZER, stop=["bc"]).feed_all(one_by_one(letters("abc")), "length")
    assert (run.whole.text, run.whole.finish_reason, run.whole.stop_reason) == ("a", "stop", "bc")


def test_tokens_after_the_stop_string_are_dropped_with_their_log_probabilities() -> None:
    run = Run(TOKENIZER, stop=["cd"], logprobs=0)
    run.feed(letters("abcdef"))
    assert run.whole.token_ids == letters("abcd")
    assert run.whole.logprobs == [position(id_) for id_ in letters("abcd")]


def test_stop_strings_wait_for_min_tokens() -> None:
    run = Run(TOKENIZER, stop=["b"], min_tokens=4).feed_all(one_by_one(letters("abcdeb")))
    assert (run.whole.text, len(run.whole.token_ids)) == ("abcde", 6)
    exact = Run(TOKENIZER, stop=["b"], min_tokens=4).feed_all(one_by_one(letters("bbbb")))
    assert (exact.whole.text, exact.whole.stop_reason) == ("bbb", "b")


def test_an_early_stop_string_that_did_not_count_may_be_the_start_of_one_that_does() -> None:
    run = Run(TOKENIZER, stop=["aa"], min_tokens=3).feed_all(one_by_one(letters("aaab")))
    assert run.texts == ["", "a", ""]
    assert run.whole.stop_reason == "aa"


def test_a_stop_string_of_byte_tokens_is_found_at_its_last_byte() -> None:
    newline = id_of(SENTENCEPIECE, "<0x0A>")
    cat = id_of(SENTENCEPIECE, "▁cat")
    run = Run(SENTENCEPIECE, stop=["\n"]).feed_all([[cat], [newline], [cat]])
    assert (run.whole.text, run.whole.token_ids) == (" cat", [cat, newline])
    euro = [id_of(SENTENCEPIECE, f"<0x{byte:02X}>") for byte in "€".encode()]
    run = Run(SENTENCEPIECE, stop=["€"]).feed_all(one_by_one([cat, *euro, cat]))
    assert run.whole.token_ids == [cat, *euro]


def test_what_was_held_back_is_flushed_once() -> None:
    run = Run(TOKENIZER, stop=["cde"])
    euro = [id_of(TOKENIZER, char) for char in "âĤ"]  # two of three bytes
    run.feed_all(one_by_one([*letters("abcd"), *euro]))
    assert run.texts == ["a", "b", "", "", "", "cd\ufffd"]


stops = st.lists(st.text("ab \u20ac", min_size=1, max_size=4), min_size=1, max_size=3)


def cut_by_hand(text: str, strings: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, the longest of equals."""
    for end in range(1, len(text) + 1):
        found = [s for s in strings if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500, deadline=None)
@given(text=st.text("ab \u20ac", max_size=30), strings=stops, data=st.data())
def test_pieces_of_any_size_are_cut_where_the_whole_is(
    text: str, strings: list[str], data: st.DataObject
) -> None:
    matcher = StopMatcher(StopStrings(strings), include=False)
    expected, found = cut_by_hand(text, strings)
    got, start_of_piece = "", 0
    while start_of_piece < len(text):
        end = start_of_piece + data.draw(st.integers(1, 5))
        got += matcher.push(text[start_of_piece:end])
        if matcher.found is None:
            held = text[len(got) : end]
            assert held == "" or any(len(s) > len(held) and s.startswith(held) for s in strings)
        start_of_piece = end
    assert (got + matcher.release(), matcher.found) == (expected, found)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    made=st.sampled_from([TOKENIZER, SENTENCEPIECE]),
    data=st.data(),
    strings=st.lists(st.text("at €é\n", min_size=1, max_size=3), max_size=2),
    min_tokens=st.sampled_from([0, 0, 3]),
    include=st.booleans(),
)
def test_the_joined_stream_is_the_whole_text_and_both_follow_from_the_tokens(
    made: Any, data: st.DataObject, strings: list[str], min_tokens: int, include: bool
) -> None:
    size = len(made)
    often = [*made.encode("at \n€"), size - 1, size - 2]
    ids = data.draw(st.lists(st.sampled_from(often) | st.integers(0, size), max_size=25))
    chunks, rest = [], ids
    while rest:
        count = data.draw(st.integers(1, 4))
        chunks.append(rest[:count])
        rest = rest[count:]
    chunks = chunks or [[]]
    params: dict[str, Any] = {
        "stop": strings,
        "logprobs": 1,
        "include_stop_str_in_output": include,
        "min_tokens": min_tokens,
    }
    stream = Run(made, **params).feed_all(chunks).whole
    assert stream == Run(made, delta=False, **params).feed_all(chunks).whole
    assert stream == Run(made, **params).feed_all([ids]).whole
    assert stream.logprobs == [position(id_) for id_ in stream.token_ids]
    assert stream.token_ids == ids[: len(stream.token_ids)]
    whole = made.decode([*PROMPT, *stream.token_ids], skip_special_tokens=True)
    text = whole[len(made.decode(PROMPT, skip_special_tokens=True)) :]
    if stream.stop_reason is None:
        assert (stream.text, stream.token_ids) == (text, ids)
    elif include:
        assert stream.text.endswith(str(stream.stop_reason))
        assert text.startswith(stream.text)
    else:
        assert text.startswith(f"{stream.text}{stream.stop_reason}")
