"""What users get of the loop's outputs: text, stop strings, n completions, deltas."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.request import (
    CompletionOutput,
    EngineOutput,
    EngineRequest,
    Logprob,
    PositionLogprobs,
    RequestOutput,
)
from engine.runtime.output_processor import OutputProcessor
from engine.runtime.stop_strings import StopMatcher, StopStrings
from engine.sampling_params import SamplingParams
from engine.testing.tokenizers import byte_level_tokenizer, id_of, sentencepiece_tokenizer

TOKENIZER = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
EOS = id_of(TOKENIZER, "</s>")


def letters(text: str) -> list[int]:
    """One token for each byte."""
    return [id_of(TOKENIZER, {" ": "Ġ", "\n": "Ċ"}.get(c, c)) for c in text]


def start(processor: OutputProcessor, **params: Any) -> list[EngineRequest]:
    made = SamplingParams(max_tokens=None, **params)
    return processor.expand("r", None, [5, 6], made, [EOS])


def position(token: int) -> PositionLogprobs:
    return [Logprob(token, -float(token), 1)]


class Run:
    """One completion, fed with chunks of tokens as a loop would, until it ends."""

    def __init__(self, tokenizer: Any, *, delta: bool = True, **params: Any) -> None:
        self.processor = OutputProcessor(tokenizer)
        self.child = start(self.processor, **params)[0].request_id
        self.delta = delta
        self.results: list[RequestOutput] = []
        self.aborted: list[str] = []

    def feed(
        self, ids: list[int], reason: str | None = None, **fields: Any
    ) -> RequestOutput | None:
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
        last = len(chunks := list(chunks)) - 1
        for index, chunk in enumerate(chunks):
            if not self.ended:
                self.feed(chunk, reason if index == last else None)
        return self

    @property
    def ended(self) -> bool:
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
        return [result.outputs[0].text for result in self.results]


def one_by_one(ids: list[int]) -> list[list[int]]:
    return [[id_] for id_ in ids]


# Stop strings


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
    tokenizer=st.sampled_from([TOKENIZER, SENTENCEPIECE]),
    data=st.data(),
    strings=st.lists(st.text("at €é\n", min_size=1, max_size=3), max_size=2),
    min_tokens=st.sampled_from([0, 0, 3]),
    include=st.booleans(),
)
def test_the_joined_stream_is_the_whole_text_and_both_follow_from_the_tokens(
    tokenizer: Any, data: st.DataObject, strings: list[str], min_tokens: int, include: bool
) -> None:
    size = len(tokenizer)
    often = [*tokenizer.encode("at \n€"), size - 1, size - 2]
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
    stream = Run(tokenizer, **params).feed_all(chunks).whole
    assert stream == Run(tokenizer, delta=False, **params).feed_all(chunks).whole
    assert stream == Run(tokenizer, **params).feed_all([ids]).whole
    assert stream.logprobs == [position(id_) for id_ in stream.token_ids]
    assert stream.token_ids == ids[: len(stream.token_ids)]
    prompt, whole = [5, 6], tokenizer.decode([5, 6, *stream.token_ids], skip_special_tokens=True)
    text = whole[len(tokenizer.decode(prompt, skip_special_tokens=True)) :]
    if stream.stop_reason is None:
        assert (stream.text, stream.token_ids) == (text, ids)
    elif include:
        assert stream.text.endswith(str(stream.stop_reason))
        assert text.startswith(stream.text)
    else:
        assert text.startswith(f"{stream.text}{stream.stop_reason}")


# Ends


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, "ab"),
        ({"include_stop_str_in_output": True}, "abc"),
    ],
)
def test_a_token_that_ended_the_output_is_delivered_but_is_no_text(
    params: dict[str, Any], text: str
) -> None:
    run = Run(TOKENIZER, stop_token_ids=letters("c"), **params)
    run.feed(letters("a"))
    run.feed(letters("bc"), "stop", stop_reason=letters("c")[0])
    assert run.whole.text == text
    assert run.whole.token_ids == letters("abc")
    assert (run.whole.finish_reason, run.whole.stop_reason) == ("stop", letters("c")[0])


@pytest.mark.parametrize("reason", ["length", "abort", "error"])
def test_every_other_end_delivers_all_text(reason: str) -> None:
    run = Run(TOKENIZER, stop=["bcd"])
    run.feed(letters("ab"))
    run.feed(letters("c"), reason)
    assert (run.whole.text, run.whole.finish_reason) == ("abc", reason)


def test_an_end_without_a_token_delivers_what_was_held_back_and_the_error() -> None:
    run = Run(TOKENIZER, stop=["bc"])
    run.feed(letters("ab"))
    run.feed([], "error", error="the step failed")
    assert run.whole.text == "ab"
    assert run.results[-1].error == "the step failed"
    assert run.ended


def test_special_tokens_are_shown_on_request() -> None:
    for skip, text in [(True, "a"), (False, "<s>a")]:
        run = Run(TOKENIZER, skip_special_tokens=skip)
        run.feed([id_of(TOKENIZER, "<s>"), *letters("a")], "length")
        assert run.whole.text == text


# Without a tokenizer


def test_without_a_tokenizer_there_are_token_ids_only() -> None:
    run = Run(None)
    run.feed([1, 2])
    run.feed([3], "stop")
    assert (run.whole.text, run.whole.token_ids) == ("", [1, 2, 3])


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    processor = OutputProcessor(None)
    with pytest.raises(RequestError, match="stop strings need a tokenizer") as caught:
        start(processor, stop="x")
    assert caught.value.param == "stop"
    assert processor.num_live == 0


# n completions and many requests


def test_a_request_becomes_n_sequences_with_seeds_of_their_own() -> None:
    seed = random.getrandbits(60)
    children = start(OutputProcessor(), n=4, seed=seed, prompt_logprobs=2, logprobs=1)
    assert len({child.request_id for child in children}) == 4
    assert [child.params.n for child in children] == [1] * 4
    assert len({child.params.seed for child in children}) == 4
    assert children[0].params.seed == seed
    again = start(OutputProcessor(), n=5, seed=seed)
    assert [c.params.seed for c in again][:4] == [c.params.seed for c in children]
    assert [child.params.prompt_logprobs for child in children] == [2, None, None, None]
    for child in children:
        assert (child.prompt_token_ids, child.end_token_ids) == ([5, 6], [EOS])
        assert child.params.logprobs == 1
        assert child.arrival > 0
    assert {child.params.seed for child in start(OutputProcessor(), n=3)} == {None}


def test_no_two_requests_share_a_sequence_id() -> None:
    processor = OutputProcessor()
    names = ["a", "a-0", "a-1", "a-1-0", "0", "-"]
    params = SamplingParams(n=12)
    children = [processor.expand(name, None, [1], params, []) for name in names]
    ids = [child.request_id for request in children for child in request]
    assert len(set(ids)) == processor.num_live == 12 * len(names)
    for name, request in zip(names, children, strict=True):
        assert {processor.parent(child.request_id) for child in request} == {name}


def test_a_request_id_in_use_is_refused_and_free_again_afterwards() -> None:
    processor = OutputProcessor()
    child = start(processor)[0]
    with pytest.raises(RequestError, match="request_id='r': in use") as caught:
        start(processor)
    assert caught.value.param == "request_id"
    processor.process(
        [EngineOutput(request_id=child.request_id, finish_reason="length")], delta=True
    )
    start(processor)


def test_a_request_is_finished_when_all_its_completions_are() -> None:
    processor = OutputProcessor(TOKENIZER)
    ids = [child.request_id for child in start(processor, n=3, stop=["x"])]

    def step(*outputs: EngineOutput) -> tuple[list[RequestOutput], list[str]]:
        return processor.process(outputs, delta=True)

    results, _ = step(*(EngineOutput(request_id=i, token_ids=letters("a")) for i in ids))
    assert [[part.index for part in result.outputs] for result in results] == [[0, 1, 2]]
    results, aborts = step(EngineOutput(request_id=ids[1], token_ids=letters("x")))
    assert aborts == [ids[1]]
    assert [(p.index, p.finish_reason, p.text) for p in results[0].outputs] == [(1, "stop", "")]
    assert not results[0].finished
    results, _ = step(
        EngineOutput(request_id=ids[2], finish_reason="error", error="it broke"),
        EngineOutput(request_id=ids[0], token_ids=letters("b")),
    )
    assert results[0].error == "it broke"
    assert {p.index: p.finish_reason for p in results[0].outputs} == {2: "error", 0: None}
    results, aborts = step(
        EngineOutput(request_id=ids[0], token_ids=letters("x"), finish_reason="length")
    )
    assert results[0].finished
    assert aborts == []
    assert processor.num_live == 0


def test_cumulative_results_hold_all_completions_in_order() -> None:
    processor = OutputProcessor(TOKENIZER)
    ids = [child.request_id for child in start(processor, n=3)]
    order = [2, 0, 2, 1]
    for count, index in enumerate(order, start=1):
        output = EngineOutput(request_id=ids[index], token_ids=letters("abcd"[count - 1]))
        results, _ = processor.process([output], delta=False)
    assert [(p.index, p.text) for p in results[0].outputs] == [(0, "b"), (1, "d"), (2, "ac")]
    ends = [EngineOutput(request_id=id_, finish_reason="length") for id_ in ids]
    results, _ = processor.process(ends, delta=False)
    assert results[0].finished
    assert [p.finish_reason for p in results[0].outputs] == ["length"] * 3
    assert results[0].prompt_token_ids == [5, 6]


def test_several_outputs_of_one_sequence_in_one_call_are_one_piece_of_news() -> None:
    processor = OutputProcessor(TOKENIZER)
    id_ = start(processor)[0].request_id
    outputs = [EngineOutput(request_id=id_, token_ids=letters(c)) for c in "abc"]
    results, _ = processor.process(outputs, delta=True)
    assert [(p.text, p.token_ids) for p in results[0].outputs] == [("abc", letters("abc"))]


def test_requests_in_one_step_do_not_touch_each_other() -> None:
    processor = OutputProcessor(TOKENIZER)
    words = ["cat", "mat", "sat"]
    children = {
        processor.expand(word, word, [1], SamplingParams(), [])[0].request_id: word
        for word in words
    }
    texts = dict.fromkeys(words, "")
    for count in itertools.count():
        outputs = [
            EngineOutput(
                request_id=child,
                token_ids=letters(word[count]),
                finish_reason="length" if count == 2 else None,
            )
            for child, word in children.items()
        ]
        results, _ = processor.process(outputs, delta=True)
        for result in results:
            assert result.prompt == result.request_id
            texts[result.request_id] += result.outputs[0].text
        if results[0].finished:
            break
    assert texts == {word: word for word in words}


def test_an_aborted_request_is_forgotten_and_its_running_sequences_are_named() -> None:
    processor = OutputProcessor(TOKENIZER)
    ids = [child.request_id for child in start(processor, n=3)]
    processor.process([EngineOutput(request_id=ids[1], finish_reason="length")], delta=True)
    assert processor.abort("r") == [ids[0], ids[2]]
    assert processor.num_live == 0
    assert processor.parent(ids[0]) is None
    late = [EngineOutput(request_id=id_, token_ids=letters("a")) for id_ in ids]
    assert processor.process(late, delta=True) == ([], [])
    assert processor.abort("r") == processor.abort("never seen") == []


# What belongs to the prompt


def test_the_prompts_log_probabilities_and_cache_hits_are_delivered_once() -> None:
    prompt_logprobs = [None, position(6)]
    for delta in (True, False):
        run = Run(TOKENIZER, delta=delta, prompt_logprobs=1)
        first = run.feed(letters("a"), prompt_logprobs=prompt_logprobs, num_cached_tokens=1)
        assert first is not None
        assert (first.prompt_logprobs, first.num_cached_tokens) == (prompt_logprobs, 1)
        second = run.feed(letters("b"), "length", num_cached_tokens=1)
        assert second is not None
        assert second.prompt_logprobs == (None if delta else prompt_logprobs)
        assert second.num_cached_tokens == 1


def test_cache_hits_of_the_other_completions_on_the_first_are_not_counted() -> None:
    processor = OutputProcessor()
    ids = [child.request_id for child in start(processor, n=2)]
    outputs = [
        EngineOutput(request_id=ids[1], token_ids=[1], num_cached_tokens=2),
        EngineOutput(request_id=ids[0], token_ids=[1], num_cached_tokens=0),
    ]
    assert processor.process(outputs, delta=True)[0][0].num_cached_tokens == 0


def test_log_probabilities_are_absent_unless_asked_for() -> None:
    run = Run(TOKENIZER)
    run.feed(letters("ab"), "length")
    assert run.whole.logprobs is None
