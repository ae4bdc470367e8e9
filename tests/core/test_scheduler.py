"""The scheduler's rules, one by one, on a stand-in for the model."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from unittest.mock import Mock

import pytest

from engine.batch import BatchShape
from engine.errors import QueueFullError, RequestError
from engine.request import EngineRequest
from engine.runtime.block_pool import BlockPool
from engine.runtime.kv_manager import KVManager
from engine.runtime.sequence import Sequence
from engine.runtime.step import Step
from engine.sampling_params import SamplingParams
from engine.testing.fake_loop import FakeLoop, continuation, random_prompt, row_sizes

# The step


def test_a_request_alone_makes_the_tokens_of_the_model() -> None:
    loop, ids = FakeLoop(), random_prompt(11)
    loop.add("a", ids, max_tokens=9)
    loop.run()
    assert loop.tokens["a"] == continuation(ids, 9)
    assert [row_sizes(step) for step in loop.steps] == [[("a", 11)], *[[("a", 1)]] * 8]
    assert loop.empty


def test_a_prompt_over_the_budget_is_computed_in_chunks() -> None:
    loop, ids = FakeLoop(max_num_batched_tokens=16), random_prompt(42)
    loop.add("a", ids, max_tokens=3)
    samples = []
    while loop.scheduler.has_work:
        step = loop.scheduler.schedule()
        samples += [row.samples for row in step.rows]
        loop.finish(step)
    assert [row_sizes(step) for step in loop.steps] == [[("a", n)] for n in (16, 16, 10, 1, 1)]
    assert samples == [False, False, True, True, True]
    assert loop.tokens["a"] == continuation(ids, 3)


def test_decodes_come_first_then_a_prompt_that_was_begun_then_who_waits() -> None:
    loop = FakeLoop(max_num_batched_tokens=16)
    loop.add("a", random_prompt(5), max_tokens=10)
    loop.step()
    loop.add("b", random_prompt(24), max_tokens=10)
    loop.add("c", random_prompt(9), max_tokens=10)
    for _ in range(3):
        loop.step()
    assert [row_sizes(step) for step in loop.steps] == [
        [("a", 5)],
        [("a", 1), ("b", 15)],
        [("a", 1), ("b", 9), ("c", 6)],
        [("a", 1), ("b", 1), ("c", 3)],
    ]


def test_a_step_of_single_token_decodes_is_uniform_and_no_other() -> None:
    loop = FakeLoop(max_num_batched_tokens=16)
    assert loop.scheduler.schedule() == Step((), BatchShape(0, 0, 0, uniform_decode=False))
    loop.add("a", random_prompt(1), max_tokens=10)
    loop.step()
    loop.step()
    loop.add("b", random_prompt(17), max_tokens=10)
    for _ in range(3):
        loop.step()
    assert [step.shape for step in loop.steps] == [
        BatchShape(1, 1, 1, uniform_decode=False),  # a prompt of one token
        BatchShape.decode(1),
        BatchShape(16, 2, 15, uniform_decode=False),
        BatchShape(3, 2, 2, uniform_decode=False),
        BatchShape.decode(2),
    ]


def test_a_chunk_of_one_token_is_no_decode() -> None:
    loop = FakeLoop(max_num_batched_tokens=4)
    loop.add("a", random_prompt(9), max_tokens=2)
    loop.run()
    shapes = [step.shape for step in loop.steps]
    assert shapes[2] == BatchShape(1, 1, 1, uniform_decode=False)
    assert shapes[3] == BatchShape.decode(1)


def test_no_more_sequences_run_than_may() -> None:
    loop = FakeLoop(max_num_seqs=3)
    for index in range(8):
        loop.add(str(index), random_prompt(4), max_tokens=5)
    while loop.scheduler.has_work:
        loop.step()
        assert loop.scheduler.num_running <= 3
    assert max(len(step.rows) for step in loop.steps) == 3
    assert set(loop.ended) == set(map(str, range(8)))


def test_no_more_sequences_run_than_the_budget_has_tokens() -> None:
    loop = FakeLoop(max_num_batched_tokens=2)
    prompts = [random_prompt(2) for _ in range(4)]
    for index, ids in enumerate(prompts):
        loop.add(str(index), ids, max_tokens=4)
    loop.run()
    assert max(step.shape.num_tokens for step in loop.steps) == 2
    assert list(loop.ended) == ["0", "1", "2", "3"]
    assert [loop.tokens[str(i)] for i in range(4)] == [continuation(p, 4) for p in prompts]


# Admission


def test_who_waits_is_admitted_in_order_of_arrival() -> None:
    # The second prompt takes most of the cache; the third would fit beside the first.
    loop = FakeLoop(num_blocks=17)
    loop.add("a", random_prompt(20), max_tokens=12)
    loop.step()
    loop.add("b", random_prompt(60), max_tokens=1)
    loop.add("c", random_prompt(4), max_tokens=1)
    loop.run()
    assert list(loop.ended) == ["a", "b", "c"]


def test_nobody_is_preempted_within_a_block_of_steps_after_an_admission() -> None:
    loop = FakeLoop(num_blocks=13, block_size=4, max_num_batched_tokens=64, caching=False)
    for index in range(12):
        loop.add(str(index), random_prompt(random.randint(1, 12)), max_tokens=30)
    admitted, steps = 0, 0
    while loop.scheduler.has_work:
        before = set(loop.scheduler._running)
        step = loop.scheduler.schedule()
        steps += 1
        if set(loop.scheduler._running) - before:
            admitted = steps
        assert not step.preempted or steps - admitted > 4
        loop.finish(step)
    assert loop.scheduler.preemptions > 0


def test_who_does_not_fit_is_looked_up_again_only_when_something_was_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = FakeLoop(num_blocks=13)
    lookup = Mock(wraps=loop.pool.lookup)
    monkeypatch.setattr(loop.pool, "lookup", lookup)
    loop.add("a", random_prompt(16), max_tokens=10)
    loop.add("b", random_prompt(8), max_tokens=20)
    loop.add("c", random_prompt(24), max_tokens=1)
    loop.run()
    assert list(loop.ended) == ["a", "b", "c"]
    # Each at once, and the last one again when the first ended, and the second.
    assert lookup.call_count == 5


def test_a_refusal_is_forgotten_when_the_sequence_is_admitted() -> None:
    pool = BlockPool(9, 4, enable_prefix_caching=False)
    manager = KVManager(pool)
    request = EngineRequest(
        request_id="a", prompt_token_ids=random_prompt(8), params=SamplingParams()
    )
    sequence, others = Sequence(request), pool.allocate(5)
    assert not manager.admit(sequence, 1, ())
    pool.release(others)
    assert manager.admit(sequence, 0, ())
    manager.release(sequence)
    sequence.restart()
    assert manager.admit(sequence, 1, ())


def test_a_full_queue_refuses_and_takes_again_when_it_has_room() -> None:
    loop = FakeLoop(max_num_seqs=1, max_queue=2)
    loop.add("a", random_prompt(4))
    loop.add("b", random_prompt(4))
    with pytest.raises(QueueFullError, match=r"2 sequences wait, 2 may \(--max-queue\)"):
        loop.add("c", random_prompt(4))
    loop.step()
    loop.add("c", random_prompt(4))
    loop.run()
    assert set(loop.ended) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("count", "max_tokens", "fits"),
    [
        (31, 1, True),
        (32, 1, False),
        (31, None, True),
        (32, None, False),
        (32, 0, True),
        (33, 0, False),
    ],
)
def test_a_prompt_must_leave_room_in_the_context(
    count: int, max_tokens: int | None, fits: bool
) -> None:
    loop = FakeLoop(max_model_len=32)
    if fits:
        loop.add("a", random_prompt(count), max_tokens=max_tokens)
    else:
        with pytest.raises(RequestError, match=f"prompt: {count} tokens .* context of 32") as info:
            loop.add("a", random_prompt(count), max_tokens=max_tokens)
        assert "--max-model-len" in str(info.value)
        assert info.value.param == "prompt"
    loop.run()
    assert loop.empty


def test_a_prompt_that_is_larger_than_the_cache_is_refused() -> None:
    loop = FakeLoop(num_blocks=5, block_size=4)
    with pytest.raises(RequestError, match=r"17 tokens need 5 KV blocks.* has 4 \(16 tokens\)"):
        loop.add("a", random_prompt(17))
    ids = random_prompt(16)
    loop.add("b", ids)
    loop.run()
    assert loop.tokens["b"] == continuation(ids, 1)
    assert loop.ended["b"].finish_reason == "length"


def test_an_empty_prompt_and_an_id_in_use_are_refused() -> None:
    loop = FakeLoop()
    with pytest.raises(RequestError, match="at least one token"):
        loop.add("a", [])
    loop.add("a", random_prompt(4))
    with pytest.raises(RequestError, match="request_id='a': in use"):
        loop.add("a", random_prompt(4))
    loop.run()
    loop.add("a", random_prompt(4))


# Preemption


def test_the_youngest_is_preempted_and_its_tokens_are_those_of_a_large_cache() -> None:
    loop = FakeLoop(num_blocks=11, caching=False)
    prompts = {name: random_prompt(8) for name in "ab"}
    for name, ids in prompts.items():
        loop.add(name, ids, max_tokens=30)
    loop.run()
    preempting = [step for step in loop.steps if step.preempted]
    assert preempting
    assert {row.sequence.request.request_id for row in preempting[0].rows} == {"a"}
    assert loop.scheduler.preemptions == sum(step.preempted for step in loop.steps)
    assert list(loop.ended) == ["a", "b"]
    assert loop.tokens == {name: continuation(ids, 30) for name, ids in prompts.items()}
    assert loop.empty


@pytest.mark.parametrize("caching", [False, True])
def test_a_sequence_that_is_preempted_twice_makes_the_same_tokens(caching: bool) -> None:
    loop = FakeLoop(num_blocks=15, block_size=4, caching=caching)
    prompts = {name: random_prompt(8) for name in "abc"}
    lengths = {"a": 16, "b": 36, "c": 36}
    for name, ids in prompts.items():
        loop.add(name, ids, max_tokens=lengths[name])
    preempted: Counter[str] = Counter()
    while loop.scheduler.has_work:
        running = set(loop.scheduler._running)
        loop.step()
        preempted.update(running & set(loop.scheduler._waiting))
    assert preempted["c"] >= 2
    assert loop.tokens == {name: continuation(ids, lengths[name]) for name, ids in prompts.items()}


def test_a_preempted_sequence_is_resumed_before_younger_ones() -> None:
    loop = FakeLoop(num_blocks=11, caching=False)
    loop.add("a", random_prompt(8), max_tokens=30)
    loop.add("b", random_prompt(8), max_tokens=30)
    while not loop.scheduler.preemptions:
        loop.step()
    loop.add("c", random_prompt(1), max_tokens=1)
    resumed = len(loop.steps)
    loop.run()
    rows = [dict(row_sizes(step)) for step in loop.steps[resumed:]]
    assert next(row for row in rows if "c" in row).keys() >= {"b", "c"}


def test_a_sequence_that_outgrows_the_cache_ends_by_length() -> None:
    loop, ids = FakeLoop(num_blocks=5, block_size=4, max_model_len=100), random_prompt(5)
    loop.add("a", ids, max_tokens=None)
    loop.run()
    assert loop.ended["a"].finish_reason == "length"
    assert loop.tokens["a"] == continuation(ids, 16 + 1 - 5)
    assert loop.empty


def test_two_that_share_blocks_each_grow_to_the_whole_cache() -> None:
    loop, ids = FakeLoop(num_blocks=6, block_size=4, max_num_batched_tokens=64), random_prompt(13)
    loop.add("a", ids, max_tokens=None)
    loop.add("b", ids, max_tokens=None)
    loop.run()
    alone = continuation(ids, 20 + 1 - 13)
    assert loop.tokens == {"a": alone, "b": alone}
    assert {output.finish_reason for output in loop.ended.values()} == {"length"}
    assert loop.empty


def test_the_scheduler_imports_no_torch() -> None:
    code = "import sys, engine.runtime.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
