"""How much memory a strategy's graphs will take, measured on the largest of them.

Graphs share one pool and are recorded largest first, so the first of a kind takes nearly all that
its kind ever takes of the pool; every graph besides costs what the driver keeps for it. So a few
shapes are recorded before the KV cache is sized, and the others are taken to cost what the later
ones of these cost. Shapes that are recorded as they are met come in any order; what is reserved
for them then covers that none reuses the memory of another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from engine.dump import GraphDump
from engine.events import Event, EventBus, GraphCaptured
from engine.strategies import GraphJob, GraphStrategy

_TRIED = 2
"""Largest sizes of each kind that are recorded for the estimate."""


def trial_sizes(job: GraphJob) -> tuple[int, ...]:
    """Return the sizes to try: the largest of all, and the largest that decode can have."""
    decode = [size for size in job.sizes if size <= job.max_num_seqs]
    return tuple(sorted({*job.sizes[-_TRIED:], *decode[-_TRIED:]}))


def estimate_graph_memory(strategy: GraphStrategy, job: GraphJob, used: Callable[[], int]) -> int:
    """Record a few shapes and return the bytes that all planned ones are expected to take.

    Args:
        strategy: a fresh instance; it is closed afterwards.
        job: with a device of its own, so that nothing of the trial is left.
        used: bytes of the device that are in use.
    """
    events, readings = EventBus(), defaultdict[str, list[int]](list)
    dearest = 0.0
    last = used()
    start = last

    def read(event: Event) -> None:
        nonlocal last, dearest
        if isinstance(event, GraphCaptured):
            now = used()
            readings[event.kind].append(max(0, now - last))
            dearest = max(dearest, (now - last) / event.num_tokens)
            last = now

    events.subscribe(read)
    trial = replace(
        job,
        sizes=trial_sizes(job),
        lazy=False,
        abort_on_failure=False,
        memory_budget=None,
        events=events,
        dump=GraphDump(),
    )
    strategy.prepare(trial)
    taken, recorded = used() - start, sum(map(len, readings.values()))
    later = [growths[1:] for growths in readings.values() if len(growths) > 1]
    each = max((sum(growths) / len(growths) for growths in later), default=0.0)
    planned = strategy.plan(job)
    strategy.close()
    expected = max(0, taken) + int(each * max(0, len(planned) - recorded))
    if job.lazy:
        expected += int(dearest * sum(shape.num_tokens for shape in planned))
    return expected
