"""What is asked of recording: a failure costs one shape, budgets hold, nothing is blind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from engine.errors import EngineError
from engine.testing.conformance.suite import Suite, ask, check
from engine.testing.conformance.toys import STRANGE, Fussy, Strange
from engine.testing.graph_modes import GraphBench, decode, random_ids


def _records(suite: type[Suite]) -> str:
    return "" if suite.plugin().NEEDS_GRAPHS else "it declares NEEDS_GRAPHS = False"


def _may_abort(suite: type[Suite]) -> str:
    if reason := _records(suite):
        return reason
    read = "on_capture_failure" in suite.plugin().SETTINGS
    return "" if read else "it doesn't read on_capture_failure"


class CaptureChecks(Suite):
    """The part of a graph strategy's suite that concerns recordings that fail or may not be."""

    if TYPE_CHECKING:
        bench: Callable[..., GraphBench]
        ask_step: Callable[..., Any]
        prefilled: Callable[..., GraphBench]
        replayed: Callable[..., Any]

    @check(needs=_records)
    def test_a_failed_capture_costs_that_shape_only(self) -> None:
        """A capture is transactional: out of memory, an error or an illegal operation drops that
        shape with its reason, and leaves the device usable for the others.
        """
        failures = {4: torch.OutOfMemoryError("no memory"), 3: ValueError("not three"), 2: None}
        model = Fussy(failures)
        bench = self.bench(model=model, device=model.device, sizes=(1, 2, 3, 4, 6))
        self.prefilled(bench, [5, 3, 1, 2, 2])
        for count in (2, 3, 4, 5, 1, 2, 3, 4, 5, 1):
            result = self.ask_step(bench.step(decode(list(range(count)))), f"{count} rows")
        dropped = {event.num_tokens: event.dropped for event in bench.captured if event.dropped}
        ask(dropped.keys() == failures.keys(), f"2, 3 and 4 can't be recorded; told: {dropped}")
        ask("not three" in dropped[3], f"the reason of 3 tokens is told as {dropped[3]!r}")
        result = self.replayed(bench, range(5))
        ask(
            not result.decision.reason and result.decision.padded.num_tokens == 6,
            f"six tokens can be recorded; five rows were run as {result.decision}",
        )
        session = model.device.session()
        try:
            with session:
                pass
        except RuntimeError as error:
            ask(held=False, found=f"the device is unusable after failed captures: {error}")

    @check(needs=_may_abort)
    def test_abort_makes_a_failed_capture_an_error(self) -> None:
        """With `on_capture_failure=abort` a failed capture is an error with the size and cause."""
        model = Fussy({4: ValueError("not four")})
        try:
            bench = self.bench(
                model=model, device=model.device, sizes=(1, 4), abort_on_failure=True
            )
            self.prefilled(bench, [5, 6, 7])
            for _ in range(3):
                bench.step(decode([0, 1, 2]))
        except EngineError as error:
            ask("4" in str(error) and "not four" in str(error), f"the error only says: {error}")
            return
        ask(held=False, found="the engine started and served in spite of a failed capture")

    @check(needs=_records)
    def test_a_memory_budget_holds(self) -> None:
        """Graphs beyond the memory budget aren't recorded: the steps run without, and it's told."""
        first = self.bench(sizes=(4,))
        self.replayed(self.prefilled(first, [2, 3, 2, 2]), range(4))
        budget = max(event.num_bytes for event in first.captured)
        bench = self.bench(sizes=(1, 2, 4), memory_budget=budget)
        self.prefilled(bench, [2, 3, 2, 2])
        for names in ([0, 1, 2, 3], [0, 1], [0]) * 2:
            self.ask_step(bench.step(decode(names)), f"{len(names)} rows with a budget")
        taken = bench.device.memory()
        ask(taken <= 2 * budget, f"{taken} bytes are taken; the budget is {budget}")

    @check(needs=_records)
    def test_smaller_graphs_fit_in_the_memory_of_larger_ones(self) -> None:
        """Graphs share one pool, the largest first: more shapes take hardly more memory."""
        memory = []
        for sizes in ((5,), (1, 2, 3, 5)):
            bench = self.prefilled(self.bench(sizes=sizes, max_num_seqs=5), [1] * 5)
            for count in range(5, 0, -1):
                for _ in range(2):
                    self.ask_step(bench.step(decode(list(range(count)))), f"{count} rows")
            memory.append(bench.device.memory())
        one, many = memory
        ask(many <= 1.3 * one, f"one graph of 5 takes {one} bytes, with all smaller ones {many}")

    @check()
    def test_what_cant_be_recorded_isnt(self) -> None:
        """A callable that says `capturable=False` is never recorded."""
        bench = self.bench(sizes=(2,))
        count = len(bench.captured)
        strategy = self.make()
        strategy.prepare(replace(bench.job, compiled=replace(bench.job.compiled, capturable=False)))
        ask(len(bench.captured) == count, "it recorded a callable that can't be recorded")

    @check()
    def test_an_unknown_operator_is_never_recorded_blindly(self) -> None:
        """An operator that nobody vouches for isn't frozen into a graph: steps stay right, whether
        by breaking at it or by running eagerly.
        """
        model = Strange(2)
        bench = self.bench(model=model, unknown_ops=(STRANGE,), sizes=(1, 2, 4))
        self.prefilled(bench, [5, 3])
        for names in ([0, 1], [1], [0, 1], [0]) * 2:
            self.ask_step(bench.step(decode(names)), "a step with an unknown operator")
        dropped = [event.dropped for event in bench.captured if event.dropped]
        ask(not dropped, f"it tried to record the operator: {dropped[:1]}")

    @check(needs=_records)
    def test_a_recording_on_the_live_batch_computes_it_as_well(self) -> None:
        """Where a shape is recorded while it is first met, that step too gives the right rows,
        and a failure then costs only the recording.
        """
        model = Fussy({4: ValueError("not four")})
        bench = self.bench(model=model, device=model.device, lazy=True, sizes=(1, 2, 4))
        self.prefilled(bench, [5, 6, 7])
        for count in (3, 2, 1, 3, 2, 1):
            self.ask_step(bench.step(decode(list(range(count)))), f"{count} rows, lazily")
            self.ask_step(bench.step([(0, random_ids(count))]), f"a chunk of {count}, lazily")
        self.ask_step(bench.step(decode([0, 1, 2])), "three rows once more")
        decided = bench.step(decode([0, 1, 2])).decision
        ask(decided.kind == "eager", f"4 tokens can't be recorded, and are run as {decided}")
        chunks = [(0, random_ids(1)), (1, random_ids(1))]
        self.ask_step(bench.step(chunks), "a step after a failed recording")
