"""What holds for any workload: right tokens, no block lost, no limit passed, nobody starved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.runtime.step import Step
from engine.testing.fake_loop import FakeLoop, continuation

CONTEXT = 60


@dataclass(frozen=True)
class Arrival:
    """A request of the workload.

    Attributes:
        at: the step before which it arrives.
        prompt: few different tokens, so that prefixes meet often.
        max_tokens: of its parameters.
        stop_at: the token that the model makes here is a stop token; None for none.
        prompt_logprobs: whether these are asked for.
        lifetime: it is aborted after as many steps; None for never.
        between: aborted between schedule and finish_step.
    """

    at: int
    prompt: list[int]
    max_tokens: int | None
    stop_at: int | None
    prompt_logprobs: bool
    lifetime: int | None
    between: bool


arrivals = st.builds(
    Arrival,
    at=st.just(0) | st.integers(0, 30),
    prompt=st.builds(
        lambda shared, own: [7] * shared + own,
        st.integers(0, 14),
        st.lists(st.integers(0, 1), min_size=1, max_size=14),
    ),
    max_tokens=st.none() | st.integers(15, 40) | st.integers(0, 30),
    stop_at=st.none() | st.none() | st.integers(0, 20),
    prompt_logprobs=st.sampled_from([False, False, True]),
    lifetime=st.none() | st.none() | st.none() | st.integers(0, 20),
    between=st.booleans(),
)

limits = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(9, 16) | st.integers(9, 60),
        "block_size": st.integers(4, 6),
        "caching": st.booleans(),
        "max_num_seqs": st.integers(2, 6) | st.just(1),
        "max_num_batched_tokens": st.integers(1, 40),
    }
)


def alone(arrival: Arrival, loop: FakeLoop) -> tuple[list[int], str]:
    """Return tokens and finish reason of a request that has the engine to itself."""
    prompt = len(arrival.prompt)
    stop = stop_tokens(arrival)
    # The last token is never computed, so it needs no place in the cache.
    cache = loop.pool.capacity * loop.pool.block_size + 1
    wanted = CONTEXT if arrival.max_tokens is None else arrival.max_tokens
    expected = continuation(arrival.prompt, min(wanted, CONTEXT - prompt, cache - prompt))
    for index, token in enumerate(expected):
        if token in stop:
            return expected[: index + 1], "stop"
    return expected, "length"


def stop_tokens(arrival: Arrival) -> list[int]:
    if arrival.stop_at is None:
        return []
    return [continuation(arrival.prompt, arrival.stop_at + 1)[-1]]


class Workload:
    """Drives a loop through arrivals and aborts, checking what must hold at every step."""

    def __init__(
        self, loop: FakeLoop, requests: dict[str, Arrival], limits: dict[str, int]
    ) -> None:
        self.loop, self.requests, self.limits = loop, requests, limits
        self.now = 0
        self.aborted: set[str] = set()
        self.preempted: Counter[str] = Counter()

    def run(self) -> None:
        while self.now <= 30 or self.loop.scheduler.has_work:
            assert self.now < 5000, "no progress"
            self.arrive()
            self.abort(between=False)
            running = set(self.loop.scheduler._running)
            step = self.loop.scheduler.schedule()
            self.preempted.update(running & set(self.loop.scheduler._waiting))
            self.check_step(step)
            self.check_memory()
            self.abort(between=True)
            self.loop.finish(step)
            self.check_memory()
            self.now += 1

    def arrive(self) -> None:
        for name, request in self.requests.items():
            if request.at == self.now:
                self.loop.add(
                    name,
                    request.prompt,
                    max_tokens=request.max_tokens,
                    stop_token_ids=stop_tokens(request),
                    prompt_logprobs=0 if request.prompt_logprobs else None,
                )

    def abort(self, *, between: bool) -> None:
        for name, request in self.requests.items():
            due = request.lifetime is not None and self.now == request.at + request.lifetime
            if due and request.between == between and self.loop.scheduler.abort(name):
                self.aborted.add(name)

    def check_step(self, step: Step) -> None:
        scheduler, rows = self.loop.scheduler, step.rows
        names = [row.sequence.request.request_id for row in rows]
        assert len(set(names)) == len(names) <= self.limits["max_num_seqs"]
        assert scheduler.num_running <= self.limits["max_num_seqs"]
        shape = step.shape
        assert shape.num_tokens == sum(row.num_tokens for row in rows)
        assert shape.num_tokens <= self.limits["max_num_batched_tokens"]
        assert shape.max_query_len == max((row.num_tokens for row in rows), default=0)
        decodes = [
            row.num_tokens == 1
            and row.samples
            and row.sequence.num_computed_tokens >= row.sequence.num_prompt_tokens
            for row in rows
        ]
        # A sequence that was preempted and found all but one token cached stands among the
        # prompts, so that uniform decode may be denied, but never claimed wrongly.
        assert not shape.uniform_decode or (rows and all(decodes))
        first_prompt = decodes.index(False) if False in decodes else len(rows)
        assert all(row.num_tokens == 1 for row in rows[:first_prompt])
        # First come, first served: whoever is oldest always gets on.
        live = list(scheduler._live)
        if rows:
            assert min(names, key=live.index) == live[0]
        else:
            assert not live or scheduler._early

    def check_memory(self) -> None:
        scheduler, pool = self.loop.scheduler, self.loop.pool
        live = list(scheduler._live)
        assert [*scheduler._running, *scheduler._waiting] == live, "the order of arrival is lost"
        owned: Counter[int] = Counter()
        for row in scheduler._running.values():
            blocks = row.sequence.block_ids
            assert len(set(blocks)) == len(blocks)
            assert row.sequence.num_computed_tokens <= len(blocks) * pool.block_size
            owned.update(blocks)
        assert 0 not in owned
        for sequence in scheduler._waiting.values():
            assert (sequence.block_ids, sequence.num_computed_tokens) == ([], 0)
        assert [pool.owners(b) for b in range(pool.num_blocks)] == [
            owned[b] for b in range(pool.num_blocks)
        ]
        assert pool.num_free == pool.capacity - len(owned)


@settings(max_examples=120, deadline=None)
@given(limits=limits, requests=st.lists(arrivals, min_size=2, max_size=9))
def test_every_request_makes_the_tokens_that_it_makes_alone(
    limits: dict[str, int], requests: list[Arrival]
) -> None:
    loop = FakeLoop(max_model_len=CONTEXT, **limits)  # type: ignore[arg-type]  # caching is a bool
    named = {str(index): request for index, request in enumerate(requests)}
    workload = Workload(loop, named, limits)
    workload.run()
    for name, request in named.items():
        tokens, reason = alone(request, loop)
        if name in workload.aborted:
            assert loop.tokens[name] == tokens[: len(loop.tokens[name])]
            assert name not in loop.ended
            continue
        assert loop.tokens[name] == tokens
        assert loop.ended[name].finish_reason == reason
        assert not request.prompt_logprobs or not loop.ended[name].num_cached_tokens
    assert loop.empty
    assert sum(loop.scheduler.finished.values()) == len(requests)
    # Everything can be owned again, and by one owner each.
    capacity = loop.pool.capacity
    assert sorted(loop.pool.allocate(capacity)) == list(range(1, capacity + 1))
    event(f"preempted at most {min(max(workload.preempted.values(), default=0), 3)} times")
    event(f"prefix hits: {loop.scheduler.prefix_hits > 0}")
