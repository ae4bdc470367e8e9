"""What users get of the loop's outputs: ends, n completions, deltas, log-probabilities."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from engine.errors import RequestError
from engine.request import EngineOutput, RequestOutput
from engine.runtime.output_processor import OutputProcessor
from engine.sampling_params import SamplingParams
from engine.testing.completions import Run, letters, position, start, tokenizer
from engine.testing.tokenizers import id_of

TOKENIZER = tokenizer()
EOS = id_of(TOKENIZER, "</s>")


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
