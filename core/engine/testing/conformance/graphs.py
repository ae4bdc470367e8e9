"""What is asked of a graph strategy, on a toy decoder and the simulated graph device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from functools import partial
from timeit import repeat
from typing import Any

import torch

from engine.batch import BatchShape
from engine.events import Event, GraphCaptured
from engine.graph_device import RecordedGraph
from engine.runtime.simulated_graphs import SimulatedGraphDevice
from engine.testing.compiling import ToyDecoder
from engine.testing.conformance.comparing import ask_equal
from engine.testing.conformance.declared import PluginConformance
from engine.testing.conformance.global_state import unchanged
from engine.testing.conformance.graphs_capture import CaptureChecks
from engine.testing.conformance.graphs_padding import PaddingChecks
from engine.testing.conformance.suite import Suite, ask, check
from engine.testing.conformance.toys import DecodeAttention, HostAttention
from engine.testing.graph_modes import (
    GraphBench,
    StepResult,
    decode,
    random_ids,
    random_steps,
)
from engine.testing.recordable_attention import RecordableAttention

MICROSECONDS = 5e-6
"""The longest time that a decision may take."""


def records(suite: type[Suite]) -> str:
    """Say why checks of recording don't concern a strategy; empty when they do."""
    return "" if suite.plugin().NEEDS_GRAPHS else "it declares NEEDS_GRAPHS = False"


def shapes_up_to(num_tokens: int, max_num_seqs: int) -> list[BatchShape]:
    """Return live shapes of decode and of mixed batches, for every number of tokens."""
    decoding = [BatchShape.decode(n) for n in range(1, min(num_tokens, max_num_seqs) + 1)]
    mixed = [
        BatchShape(n, reqs, n - reqs + 1, uniform_decode=False)
        for n in range(2, num_tokens + 1)
        for reqs in {1, min(n - 1, max_num_seqs)}
    ]
    return decoding + mixed


class CountingDevice(SimulatedGraphDevice):
    """A simulated device that knows which of its graphs are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[weakref.ref[RecordedGraph]] = []

    def end(self) -> Any:
        """Stop recording and note the graph."""
        if (graph := super().end()) is not None:
            self.graphs.append(weakref.ref(graph))
        return graph


class GraphStrategyConformance(PaddingChecks, CaptureChecks, PluginConformance):
    """Checks of a graph mode. Strategies that record on demand are asked the same."""

    KIND = "cudagraph_modes"
    SETTING = "compilation_config.cudagraph_mode"

    def bench(self, **settings: Any) -> GraphBench:
        """Make a bench; its device is None for a strategy that declares that it needs none."""
        return GraphBench(self.make(), **settings)

    def ask_step(self, result: StepResult, what: str) -> StepResult:
        """Ask that a step gave what it gives without graphs, and return it."""
        for row, (got, wanted) in enumerate(zip(result.hidden, result.expected, strict=True)):
            ask_equal(got, wanted, f"{what}, request {row}, run as {result.decision}")
        return result

    def prefilled(self, bench: GraphBench, lengths: Iterable[int]) -> GraphBench:
        """Give a bench the sequences 0, 1, … with random prompts, checking each."""
        for name, length in enumerate(lengths):
            self.ask_step(bench.step([(name, random_ids(length))]), f"a prompt of {length}")
        return bench

    def replayed(self, bench: GraphBench, names: Iterable[int]) -> StepResult:
        """Decode until a step is replayed: a strategy may first record what it meets."""
        result = None
        for _ in range(4):
            result = self.ask_step(bench.step(decode(list(names))), "a decode step")
            if not result.decision.reason:
                break
        if result is None:
            raise RuntimeError("nothing was decoded")
        return result

    @check(quick=True)
    def test_any_batch_gives_what_it_gives_without_graphs(self) -> None:
        """Whatever comes (prompts, chunks, decode, rows in any order), each live row is what it is
        without graphs.
        """
        for settings in ({}, {"lazy": True}):
            bench = self.bench(sizes=(2, 4, 8), **settings)
            for number, result in random_steps(bench, 15, shuffle=True):
                self.ask_step(result, f"batch {number} ({settings or 'recorded before'})")
            bench.strategy.close()

    @check(quick=True)
    def test_a_decision_is_pure_covers_the_batch_and_says_why(self) -> None:
        """`dispatch` is a pure function of the shape: the padded shape covers the live one, an
        eager step isn't padded and has a reason, and its kind is one of `KINDS`.
        """
        bench = self.bench(sizes=(1, 4, 7), max_num_seqs=5)
        for shape in shapes_up_to(9, 5):
            decision = bench.strategy.dispatch(shape)
            ask(
                decision == bench.strategy.dispatch(shape),
                f"{shape} is first decided as {decision}, then otherwise",
            )
            padded = decision.padded
            if decision.kind == "eager":
                ask(padded == shape, f"{shape} runs eagerly, padded to {padded}")
                ask(decision.reason, f"{shape} isn't replayed, and nothing says why")
                continue
            ask(
                decision.kind in self.plugin().KINDS,
                f"{decision.kind!r} isn't in KINDS {self.plugin().KINDS}",
            )
            ask(
                padded.num_tokens >= shape.num_tokens
                and padded.num_reqs >= shape.num_reqs
                and padded.max_query_len >= shape.max_query_len
                and (shape.uniform_decode or not padded.uniform_decode),
                f"{shape} is padded to {padded}, which doesn't cover it",
            )

    @check(quick=True)
    def test_a_decision_takes_microseconds(self) -> None:
        """`dispatch` is a table look-up: under 5 µs."""
        strategy = self.bench(sizes=(4,)).strategy
        for shape in (BatchShape.decode(3), BatchShape(99, 3, 97, uniform_decode=False)):
            best = min(repeat(partial(strategy.dispatch, shape), number=500, repeat=9)) / 500
            ask(best < MICROSECONDS, f"a decision about {shape} takes {best * 1e6:.1f} µs")

    @check()
    def test_a_batch_beyond_every_shape_runs_as_it_is(self) -> None:
        """A batch that no recorded shape covers runs unpadded and unrecorded, with a reason."""
        bench = self.bench(sizes=(1, 2))
        result = self.ask_step(bench.step([("a", random_ids(7)), ("b", random_ids(3))]), "10 rows")
        ask(
            result.decision.kind == "eager"
            and result.decision.padded == BatchShape(10, 2, 7, uniform_decode=False)
            and result.decision.reason,
            f"with the sizes 1 and 2, ten tokens were run as {result.decision}",
        )

    @check(needs=records)
    def test_every_kind_is_used_and_no_other(self) -> None:
        """`KINDS` are the labels of recorded steps: each one is reached, and there is no other."""
        bench = self.prefilled(self.bench(sizes=(2, 4), max_num_seqs=4), [3, 2])
        seen = {self.replayed(bench, [0, 1]).decision.kind}
        for _ in range(3):
            seen.add(bench.step([(0, random_ids(2)), (1, random_ids(1))]).decision.kind)
        told = {event.kind for event in bench.captured}
        for kinds, what in ((seen - {"eager"}, "decisions"), (told, "events")):
            ask(
                kinds == set(self.plugin().KINDS),
                f"the {what} have the kinds {sorted(kinds)}, KINDS is {self.plugin().KINDS}",
            )

    @check()
    def test_graphs_are_used_if_and_only_if_it_says_so(self) -> None:
        """`NEEDS_GRAPHS = False` promises to record nothing and to need no graph device; a
        strategy that needs one replays decode steps.
        """
        bench = self.bench(sizes=(2,))
        if self.plugin().NEEDS_GRAPHS:
            last = self.replayed(self.prefilled(bench, [3, 2]), [0, 1])
            ask(not last.decision.reason, f"decode is never replayed: {last.decision}")
            return
        ask(bench.captured == [], "NEEDS_GRAPHS is false, and something was recorded")
        bench = self.bench(give_device=False)
        self.prefilled(bench, [3, 5])
        decided = bench.step(decode([0, 1])).decision
        ask(decided.kind == "eager", f"NEEDS_GRAPHS is false, and a step was run as {decided}")

    @check(needs=records)
    def test_it_keeps_to_what_attention_allows(self) -> None:
        """`MIN_SUPPORT` is the least that attention must declare for replays; attention that
        declares no more is never recorded for batches that it didn't allow.
        """
        least = self.plugin().MIN_SUPPORT
        attentions = (HostAttention, DecodeAttention, RecordableAttention)
        attention = next(a for a in attentions if least == a.GRAPH_SUPPORT)
        bench = self.prefilled(self.bench(attention=attention(), sizes=(1, 2, 4)), [3, 2, 4])
        last = self.replayed(bench, [0, 1])
        ask(
            not last.decision.reason,
            f"MIN_SUPPORT is {least.name}, and with such attention decode isn't replayed: "
            f"{last.decision}",
        )
        for _ in range(2):
            chunks = [(0, random_ids(1)), (1, random_ids(2)), (2, random_ids(1))]
            self.ask_step(bench.step(chunks), f"a mixed batch, attention {least.name}")
        dropped = [event.dropped for event in bench.captured if event.dropped]
        ask(not dropped, f"attention that allows {least.name} was recorded: {dropped[:1]}")

    @check(needs=records)
    def test_inputs_a_b_a(self) -> None:
        """Inputs are read from the static buffers at replay; nothing is frozen at capture."""
        bench = self.prefilled(self.bench(sizes=(2,)), [4, 4])
        self.replayed(bench, [0, 1])
        first, second = decode([0, 1]), decode([0, 1])
        outcomes = []
        for chunks, name in ((first, "A"), (second, "B"), (first, "A again")):
            for sequence in bench.tokens.values():
                del sequence.token_ids[4:]
                sequence.num_computed_tokens = 4
            bench.reference.lengths = dict.fromkeys(bench.reference.lengths, 4)
            outcomes.append(torch.cat(self.ask_step(bench.step(chunks), f"inputs {name}").hidden))
        ask(torch.equal(outcomes[0], outcomes[2]), "inputs A give other bits after inputs B")
        ask(not torch.equal(outcomes[0], outcomes[1]), "inputs A and B give one and the same")

    @check(needs=records)
    def test_the_same_padded_shape_with_other_context_lengths(self) -> None:
        """Metadata are read at replay: another longest context in one padded shape is right."""
        bench = self.prefilled(self.bench(sizes=(2,)), [1, 2, 25, 24])
        for names in ([0, 1], [2, 3], [1, 2], [0, 3], [3], [0, 1]):
            self.ask_step(bench.step(decode(names)), f"sequences {names}")

    @check(needs=records)
    def test_inputs_of_another_length_are_refused(self) -> None:
        """A replay of inputs that aren't those of the recorded shape raises instead of computing
        something else.
        """
        bench = self.prefilled(self.bench(sizes=(2, 4)), [5, 3])
        self.replayed(bench, [0, 1])
        shape = BatchShape.decode(2)
        decision = bench.strategy.dispatch(shape)
        _, attention = bench.buffers.fill_dummy(shape)
        longer, _ = bench.buffers.fill_dummy(BatchShape.decode(4))
        with torch.inference_mode(), bench.context(shape, attention):
            try:
                bench.strategy.run(decision, longer)
            except (RuntimeError, ValueError):
                return
        ask(held=False, found=f"{decision} took inputs of 4 tokens without a word")

    @check()
    def test_two_engines_of_one_process(self) -> None:
        """Nothing is shared between two engines of one process."""
        benches = [self.bench(model=ToyDecoder(2, seed=seed), sizes=(1, 2)) for seed in (1, 2)]
        for bench in benches:
            self.prefilled(bench, [3, 5])
        for number in range(3):
            for index, bench in enumerate(benches):
                self.ask_step(bench.step(decode([0, 1])), f"engine {index}, step {number}")
        benches[0].strategy.close()
        self.ask_step(benches[1].step(decode([0])), "an engine whose neighbour was closed")

    @check()
    def test_nothing_global_is_left_changed(self) -> None:
        """Recording and replaying leave settings, environment and random numbers as they were."""
        prompts, steps = [random_ids(3), random_ids(5)], [decode([0, 1]) for _ in range(3)]
        with unchanged("recording and replaying"):
            bench = self.bench(sizes=(1, 2))
            for name, prompt in enumerate(prompts):
                bench.step([(name, prompt)])
            for step in steps:
                bench.step(step)
            bench.strategy.close()

    @check(needs=records)
    def test_close_frees_the_graphs(self) -> None:
        """`close` frees graphs and their memory."""
        device = CountingDevice()
        bench = self.prefilled(self.bench(device=device, sizes=(1, 2)), [3, 2])
        self.replayed(bench, [0, 1])
        bench.strategy.close()
        gc.collect()
        alive = sum(graph() is not None for graph in device.graphs)
        ask(device.graphs, "nothing was recorded")
        ask(not alive, f"{alive} of {len(device.graphs)} graphs are still alive after close()")

    @check()
    def test_every_recording_is_told_once(self) -> None:
        """One event tells of each recording, in the order of the plan, with its time and memory."""
        bench = self.bench(sizes=(1, 8, 2), max_num_seqs=6)
        planned = [shape.num_tokens for shape in bench.strategy.plan(bench.job)]
        told = [event.num_tokens for event in bench.captured]
        ask(told == planned, f"the plan is {planned}, the events tell of {told}")
        ask(all(e.seconds >= 0 and e.num_bytes >= 0 for e in bench.captured), "a negative cost")
        for kind in self.plugin().KINDS:
            sizes = bench.recorded(kind)
            ask(
                sizes == sorted(sizes, reverse=True),
                f"{kind} graphs are recorded in the order {sizes}; the largest must come first, "
                "so that smaller ones fit into its memory",
            )
        count = len(bench.events)
        for _ in range(2):
            self.prefilled(bench, [2])
        told_late = [e for e in bench.events[count:] if _is_recording(e)]
        ask(
            not (planned and told_late),
            f"a strategy that planned {planned} recorded more while serving",
        )


def _is_recording(event: Event) -> bool:
    return isinstance(event, GraphCaptured)
