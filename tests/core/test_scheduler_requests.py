"""What a request gets: its end, log-probabilities, cached prefixes; and how it is aborted."""

from __future__ import annotations

import random

import pytest

from engine.testing.fake_loop import FakeLoop, continuation, random_prompt, row_sizes

# The end


def test_the_models_end_token_ends_without_a_stop_reason() -> None:
    loop, ids = FakeLoop(), random_prompt(6)
    expected = continuation(ids, 10)
    end = expected[4]
    loop.add("a", ids, [end], max_tokens=10)
    loop.add("b", ids, [end], max_tokens=10, ignore_eos=True)
    loop.run()
    cut = expected.index(end) + 1
    assert loop.tokens == {"a": expected[:cut], "b": expected}
    assert (loop.ended["a"].finish_reason, loop.ended["a"].stop_reason) == ("stop", None)
    assert (loop.ended["b"].finish_reason, loop.ended["b"].stop_reason) == ("length", None)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_token_is_named_also_when_it_is_the_models_end_token(ignore_eos: bool) -> None:
    loop, ids = FakeLoop(), random_prompt(6)
    stop = continuation(ids, 3)[2]
    params = {"max_tokens": 10, "stop_token_ids": [stop], "ignore_eos": ignore_eos}
    loop.add("a", ids, [stop], **params)
    loop.run()
    assert (loop.ended["a"].finish_reason, loop.ended["a"].stop_reason) == ("stop", stop)


def test_no_stop_token_ends_before_min_tokens() -> None:
    loop, ids = FakeLoop(), random_prompt(6)
    expected = continuation(ids, 30)
    loop.add("a", ids, expected[:1], max_tokens=30, min_tokens=7, stop_token_ids=expected)
    loop.run()
    assert loop.tokens["a"] == expected[:7]
    assert loop.ended["a"].finish_reason == "stop"


def test_without_max_tokens_it_ends_at_the_end_of_the_context() -> None:
    loop, ids = FakeLoop(max_model_len=40), random_prompt(6)
    loop.add("a", ids, max_tokens=None)
    loop.add("b", ids, max_tokens=1000, min_tokens=900)
    loop.run()
    assert loop.tokens == {"a": continuation(ids, 34), "b": continuation(ids, 34)}
    assert loop.ended["a"].finish_reason == loop.ended["b"].finish_reason == "length"


def test_max_tokens_zero_ends_at_once() -> None:
    loop = FakeLoop()
    loop.add("a", random_prompt(6), max_tokens=0)
    assert loop.scheduler.has_work
    (output,) = loop.step()
    assert (output.request_id, output.token_ids, output.finish_reason) == ("a", [], "length")
    assert loop.steps == []
    assert loop.empty


def test_max_tokens_zero_computes_the_prompt_for_its_log_probabilities() -> None:
    loop, ids = FakeLoop(max_num_batched_tokens=4), random_prompt(9)
    loop.add("a", ids, max_tokens=0, prompt_logprobs=0)
    while loop.scheduler.has_work:
        step = loop.scheduler.schedule()
        assert not any(row.samples for row in step.rows)
        loop.finish(step)
    assert loop.tokens["a"] == []
    assert loop.ended["a"].finish_reason == "length"
    logprobs = loop.ended["a"].prompt_logprobs
    assert logprobs is not None
    assert [entry and entry[0].token_id for entry in logprobs] == [None, *ids[1:]]
    assert loop.empty


# Log-probabilities


def test_prompt_logprobs_are_gathered_over_chunks_and_sent_once() -> None:
    loop, ids = FakeLoop(max_num_batched_tokens=4), random_prompt(10)
    loop.add("a", ids, max_tokens=3, prompt_logprobs=1, logprobs=1)
    outputs = []
    while loop.scheduler.has_work:
        outputs += loop.step()
    first, *rest = [output.prompt_logprobs for output in outputs]
    assert first is not None
    assert first[0] is None
    assert [entry[0].logprob for entry in first[1:] if entry] == [-float(i) for i in range(1, 10)]
    assert rest == [None, None]
    assert [[p[0].token_id for p in output.logprobs or []] for output in outputs] == [
        [token] for token in loop.tokens["a"]
    ]


def test_prompt_logprobs_are_whole_when_the_prompt_was_preempted_in_the_middle() -> None:
    loop = FakeLoop(num_blocks=11, block_size=4, max_num_batched_tokens=2)
    loop.add("a", random_prompt(3), max_tokens=30)
    loop.step()
    loop.step()
    ids = random_prompt(24)
    loop.add("b", ids, max_tokens=10, prompt_logprobs=0)
    outputs = []
    while loop.scheduler.has_work:
        outputs += [output for output in loop.step() if output.request_id == "b"]
        assert not (outputs and loop.steps[-1].preempted), "preempted too late for this test"
    sent = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert len(sent) == 1
    assert [entry and entry[0].token_id for entry in sent[0]] == [None, *ids[1:]]
    assert loop.scheduler.preemptions > 0
    assert loop.tokens["b"] == continuation(ids, 10)


# Prefix cache


def test_a_hit_makes_the_tokens_of_a_miss() -> None:
    loop, ids = FakeLoop(block_size=4), random_prompt(18)
    for name in "abc":
        loop.add(name, ids[:14] if name == "c" else ids, max_tokens=6)
        loop.run()
    assert [sum(n for _, n in row_sizes(loop.steps[6 * i])) for i in range(3)] == [18, 2, 2]
    assert [loop.ended[name].num_cached_tokens for name in "abc"] == [0, 16, 12]
    assert loop.tokens["a"] == loop.tokens["b"] == continuation(ids, 6)
    assert loop.tokens["c"] == continuation(ids[:14], 6)


def test_the_last_prompt_token_is_always_computed() -> None:
    loop, ids = FakeLoop(block_size=4), random_prompt(16)
    for name in "ab":
        loop.add(name, ids, max_tokens=1)
        loop.run()
    assert loop.ended["b"].num_cached_tokens == 12
    assert [row_sizes(step) for step in loop.steps] == [[("a", 16)], [("b", 4)]]


def test_a_conversation_finds_the_answer_of_the_turn_before() -> None:
    loop, ids = FakeLoop(block_size=4), random_prompt(6)
    loop.add("a", ids, max_tokens=11)
    loop.run()
    turn = ids + loop.tokens["a"] + random_prompt(3)
    loop.add("b", turn, max_tokens=5)
    loop.run()
    assert loop.ended["b"].num_cached_tokens == 16
    assert loop.tokens["b"] == continuation(turn, 5)


def test_prompt_logprobs_bypass_the_prefix_cache() -> None:
    loop, ids = FakeLoop(), random_prompt(18)
    loop.add("a", ids, max_tokens=4)
    loop.run()
    loop.add("b", ids, max_tokens=4, prompt_logprobs=2)
    loop.run()
    assert loop.ended["b"].num_cached_tokens == 0
    assert loop.tokens["b"] == loop.tokens["a"]
    assert loop.scheduler.prefix_queries == 18


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    loop, ids = FakeLoop(max_num_batched_tokens=64), random_prompt(21)
    for index in range(5):
        loop.add(str(index), ids, max_tokens=8)
    loop.run()
    assert [row_sizes(step) for step in loop.steps[:2]] == [
        [("0", 21)],
        [("0", 1), *[(str(index), 1) for index in range(1, 5)]],
    ]
    assert all(loop.tokens[str(index)] == continuation(ids, 8) for index in range(5))


def test_what_an_aborted_prompt_was_to_compute_is_not_waited_for() -> None:
    loop, ids = FakeLoop(), random_prompt(21)
    loop.add("a", ids, max_tokens=8)
    loop.add("b", ids, max_tokens=8)
    step = loop.scheduler.schedule()
    loop.scheduler.abort("a")
    loop.finish(step)
    loop.run()
    assert loop.ended["b"].num_cached_tokens == 0
    assert loop.tokens["b"] == continuation(ids, 8)


# Abort


def test_abort_frees_at_once_in_every_state() -> None:
    loop = FakeLoop(num_blocks=11, max_num_batched_tokens=16, caching=False)
    ids = {name: random_prompt(8) for name in "ab"}
    loop.add("a", ids["a"], max_tokens=30)
    loop.add("b", ids["b"], max_tokens=30)
    while not loop.scheduler.preemptions:
        loop.step()
    loop.add("w", random_prompt(30))
    assert loop.scheduler.abort("w")  # waiting
    assert loop.scheduler.abort("b")  # preempted
    assert loop.scheduler.num_waiting == 0
    assert loop.scheduler.abort("a")  # decoding
    assert loop.pool.num_free == loop.pool.capacity
    loop.add("p", random_prompt(30))
    loop.step()
    assert loop.scheduler.abort("p")  # amid its prompt
    assert loop.empty
    assert loop.scheduler.finished == {"abort": 4}
    assert not loop.scheduler.abort("p")
    assert not loop.scheduler.abort("never")


def test_abort_between_schedule_and_finish_is_tolerated() -> None:
    loop, ids = FakeLoop(), {name: random_prompt(9) for name in "abc"}
    for name in "abc":
        loop.add(name, ids[name], max_tokens=12)
    for victim in "ab":
        step = loop.scheduler.schedule()
        assert loop.scheduler.abort(victim)
        assert victim not in [output.request_id for output in loop.finish(step)]
    loop.run()
    assert loop.tokens["c"] == continuation(ids["c"], 12)
    assert "a" not in loop.ended
    assert loop.empty


def test_an_aborted_id_may_be_used_again_before_its_step_ends() -> None:
    loop, ids = FakeLoop(), random_prompt(9)
    loop.add("a", random_prompt(9), max_tokens=12)
    step = loop.scheduler.schedule()
    loop.scheduler.abort("a")
    loop.add("a", ids, max_tokens=12)
    loop.finish(step)
    loop.run()
    assert loop.tokens["a"] == continuation(ids, 12)


def test_blocks_of_an_ended_row_go_to_another_while_the_rest_goes_on() -> None:
    loop = FakeLoop(num_blocks=14, caching=False)
    ids = {name: random_prompt(8) for name in "abcd"}
    for name, max_tokens in zip("abc", (20, 3, 20), strict=True):
        loop.add(name, ids[name], max_tokens=max_tokens)
    loop.add("d", ids["d"], max_tokens=10)
    loop.run()
    for name, max_tokens in zip("abcd", (20, 3, 20, 10), strict=True):
        assert loop.tokens[name] == continuation(ids[name], max_tokens)


def test_two_hundred_disconnects_leave_no_block_behind() -> None:
    loop = FakeLoop(num_blocks=40)
    for index in range(200):
        loop.add(str(index), random_prompt(random.randint(1, 20)), max_tokens=20)
        for _ in range(random.randint(0, 4)):
            loop.step()
        loop.scheduler.abort(str(index))
    assert loop.empty


# Counters


def test_counters_count_every_token_and_every_end_once() -> None:
    loop, ids = FakeLoop(num_blocks=15), random_prompt(8)
    end = continuation(ids, 5)[4]
    loop.add("a", ids, max_tokens=30)
    loop.add("b", ids, [end], max_tokens=30)
    loop.add("c", random_prompt(8), max_tokens=30)
    loop.add("d", random_prompt(8), max_tokens=0)
    loop.add("e", random_prompt(8))
    loop.scheduler.abort("e", reason="error")
    loop.run()
    scheduler = loop.scheduler
    assert scheduler.generation_tokens == sum(map(len, loop.tokens.values()))
    assert scheduler.prompt_tokens == 24
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (24, 4)
    assert scheduler.finished == {"length": 3, "stop": 1, "error": 1}


def test_a_row_that_should_sample_must_have_been_sampled() -> None:
    loop = FakeLoop()
    loop.add("a", random_prompt(3))
    with pytest.raises(KeyError, match="no token was sampled for a"):
        loop.scheduler.finish_step(loop.scheduler.schedule(), {})
