"""What is asked of a compile strategy, on a toy decoder and a backend that changes nothing."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch._dynamo.utils import counters

from engine.errors import EngineError
from engine.events import CompiledUnit, Event
from engine.plugin import Numerics
from engine.strategies import CompiledModel, CompileStrategy
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine.testing.conformance.comparing import ask_equal
from engine.testing.conformance.compile_cache import CompileCacheChecks
from engine.testing.conformance.declared import PluginConformance
from engine.testing.conformance.global_state import unchanged
from engine.testing.conformance.suite import Suite, ask, check
from engine.testing.conformance.toys import (
    BranchesAtSeven,
    ExactBackend,
    FailingBackend,
    UntouchedBackend,
    WholeGraphs,
)
from engine.testing.graph_modes import GraphBench, random_steps
from engine.testing.paged import PagedRunner
from engine.testing.recordable_attention import RecordableAttention

TOKENS = 16
"""The largest step of the checks."""
SIZES = (1, 2, 3, 7, 8, TOKENS - 1, TOKENS)


def _takes_a_backend(suite: type[Suite]) -> str:
    return "" if suite.plugin().USES_BACKEND else "it declares USES_BACKEND = False"


def _capturable(suite: type[Suite]) -> str:
    return "" if suite.plugin().CAPTURABLE else "it declares CAPTURABLE = False"


@dataclass
class Made:
    """One compiled toy decoder."""

    model: ToyDecoder
    backend: ExactBackend
    strategy: CompileStrategy
    compiled: CompiledModel
    events: list[Event] = field(default_factory=list)

    @property
    def units(self) -> list[CompiledUnit]:
        """The compilations that were told."""
        return [event for event in self.events if isinstance(event, CompiledUnit)]

    def compare(self, num_tokens: int, what: str, numerics: Numerics, *, seed: int = 0) -> None:
        """Ask that a step gives what the module gives."""
        wanted = run_step(self.model, self.model, num_tokens, seed=seed)
        got = run_step(self.compiled.call, self.model, num_tokens, seed=seed)
        ask_equal(got, wanted, f"{what}, {num_tokens} tokens", numerics)


class CompileStrategyConformance(CompileCacheChecks, PluginConformance):
    """Checks of a compile mode.

    Attributes:
        backend: makes the backend that it is paired with; its results are those of eager.
    """

    KIND = "compile_modes"
    SETTING = "compilation_config.mode"
    backend: ClassVar[type[ExactBackend]] = ExactBackend

    def compiled(
        self,
        model: ToyDecoder | None = None,
        backend: ExactBackend | None = None,
        **job: Any,
    ) -> Made:
        """Compile a toy decoder as the engine would."""
        model = model if model is not None else ToyDecoder(2, seed=random.randrange(1000))  # noqa: S311 - not for secrets
        backend = backend if backend is not None else self.backend()
        events: list[Event] = []
        strategy = self.make()
        settings = {"max_num_tokens": TOKENS, "on_event": events.append, **job}
        compiled = strategy.compile(compile_job(model, backend, **settings))
        return Made(model, backend, strategy, compiled, events)

    @property
    def numerics(self) -> Numerics:
        """What the strategy declares."""
        declared: Numerics = self.plugin().NUMERICS
        return declared

    @check(quick=True)
    def test_any_number_of_tokens_gives_what_the_module_gives(self) -> None:
        """The callable gives the module's results within the declared numerics class, for every
        number of tokens: one, odd ones, the largest and the one below it.
        """
        made = self.compiled()
        for num_tokens in random.sample(SIZES, len(SIZES)):
            made.compare(num_tokens, "a prompt", self.numerics, seed=num_tokens)
        made.strategy.close()

    @check()
    def test_sizes_and_ranges_of_the_user_give_the_same(self) -> None:
        """Sizes and ranges that are specialised for change no result."""
        made = self.compiled(exact_sizes=(3, 8), ranges=(4,))
        for num_tokens in (1, 3, 4, 5, 8, TOKENS):
            made.compare(num_tokens, "sizes 3 and 8, a range to 4", self.numerics)
        made.strategy.close()
        for limit in (1, 2):
            made = self.compiled(max_num_tokens=limit)
            made.compare(limit, f"a limit of {limit}", self.numerics)
            made.strategy.close()

    @check()
    def test_inputs_a_b_a(self) -> None:
        """Inputs are read at each step; nothing of an earlier step is frozen into the callable."""
        made = self.compiled()
        results = []
        for seed in (1, 2, 1):
            made.compare(5, f"inputs {'_AB'[seed]}", self.numerics, seed=seed)
            results.append(run_step(made.compiled.call, made.model, 5, seed=seed))
        ask_equal(results[2], results[0], "inputs A after B", Numerics.BITWISE)
        ask(not torch.equal(results[0], results[1]), "inputs A and B give one and the same result")
        made.strategy.close()

    @check()
    def test_the_forward_context_is_read_at_each_step(self) -> None:
        """What a step's metadata say (requests, blocks, lengths) is read by the break ops at run
        time: batches of one size with other requests give what the module gives.
        """
        made, attention = self.compiled(), RecordableAttention()
        runs = [
            PagedRunner(made.model, attention, 40, 4, call=call)
            for call in (made.compiled.call, made.model)
        ]
        steps: Sequence[Any] = (
            [("a", [1, 2, 3, 4, 5, 6])],
            [("b", [7, 8]), ("c", [9, 10, 11, 12])],
            [("a", [3]), ("b", [4]), ("c", [5]), ("d", [6, 7, 8])],
            [("d", [1]), ("a", [2])],
        )
        for number, chunks in enumerate(steps):
            got, wanted = (torch.cat(run.forward(chunks)) for run in runs)
            ask_equal(got, wanted, f"batch {number} of {len(chunks)} requests", self.numerics)
        made.strategy.close()

    @check()
    def test_rows_beyond_the_step_are_not_read(self) -> None:
        """Inputs are views of static buffers; what lies behind the step's rows is anybody's."""
        made = self.compiled()
        buffers = torch.full((2, TOKENS + 8), -(10**6), dtype=torch.int64)

        def in_a_buffer(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            views = buffers[:, : len(ids)]
            views.copy_(torch.stack([ids, positions]))
            hidden: torch.Tensor = made.compiled.call(views[0], views[1])
            return hidden

        for num_tokens in (3, 7, TOKENS):
            wanted = run_step(made.model, made.model, num_tokens)
            buffers.fill_(-(10**6))
            got = run_step(in_a_buffer, made.model, num_tokens)
            ask_equal(got, wanted, f"{num_tokens} rows of a poisoned buffer", self.numerics)
        made.strategy.close()

    @check()
    def test_nothing_is_compiled_late(self) -> None:
        """Nothing is compiled after `compile` returned, in whatever order sizes come."""
        made = self.compiled(exact_sizes=(4,), sizes=(8,))
        stats, calls, told = dict(counters["stats"]), len(made.backend.compiled), len(made.units)
        order = random.sample(range(1, TOKENS + 1), TOKENS)
        for num_tokens in order:
            run_step(made.compiled.call, made.model, num_tokens)
            late = [unit for unit in made.units[told:] if unit.late] or (
                dict(counters["stats"]) != stats or len(made.backend.compiled) != calls
            )
            ask(not late, f"a step of {num_tokens} tokens compiled something (order: {order})")
        made.strategy.close()

    @check()
    def test_a_late_compilation_is_told(self) -> None:
        """A model that needs another graph for one size is refused, or what is compiled late is
        right and reported as `CompiledUnit(late=True)`.
        """
        model = BranchesAtSeven(2)
        try:
            made = self.compiled(model)
        except EngineError:
            return
        calls = len(made.backend.compiled)
        made.compare(7, "the size that the model's Python asks for", self.numerics)
        late = sum(unit.late for unit in made.units)
        more = len(made.backend.compiled) - calls
        ask(late >= bool(more), f"{more} graphs were compiled while serving, {late} were told")
        made.strategy.close()

    @check(needs=_takes_a_backend)
    def test_what_was_compiled_is_reported(self) -> None:
        """The report and the events count each callable that was made or loaded, once."""
        made = self.compiled()
        report, calls = made.compiled.report, len(made.backend.compiled)
        ask(calls > 0, "it declares USES_BACKEND, and never called the backend")
        ask(
            report.cache_misses == calls and report.cache_hits == 0,
            f"{calls} graphs were compiled; the report says {report.cache_misses} misses and "
            f"{report.cache_hits} hits",
        )
        ask(len(made.units) == calls, f"{calls} compilations, {len(made.units)} events")
        ask(not any(unit.late for unit in made.units), "a compilation before ready is told as late")
        ask(
            report.pieces >= report.unique_pieces > 0,
            f"{report.unique_pieces} unique pieces of {report.pieces}",
        )
        ask(all(s >= 0 for s in report.seconds.values()), f"seconds: {report.seconds}")
        made.strategy.close()

    @check(quick=True)
    def test_it_calls_the_backend_if_and_only_if_it_says_so(self) -> None:
        """`USES_BACKEND = False` promises that no graph is handed to a backend."""
        if self.plugin().USES_BACKEND:
            made = self.compiled()
            ask(made.backend.compiled, "USES_BACKEND is true, and no graph reached the backend")
        else:
            made = self.compiled(backend=UntouchedBackend())
            made.compare(3, "without a backend", self.numerics)
        made.strategy.close()

    @check()
    def test_whether_it_may_be_recorded_is_told(self) -> None:
        """`CAPTURABLE` says whether a graph strategy may record the callable, and a backend whose
        code can't be recorded makes it false.
        """
        made = self.compiled()
        ask(
            made.compiled.capturable == self.plugin().CAPTURABLE,
            f"CAPTURABLE is {self.plugin().CAPTURABLE}, the callable says "
            f"{made.compiled.capturable}",
        )
        made.strategy.close()
        if self.plugin().USES_BACKEND:
            backend = type("Unrecordable", (self.backend,), {"CAPTURABLE": False})()
            made = self.compiled(backend=backend)
            ask(
                not made.compiled.capturable,
                "its callable counts as recordable with a backend that declares CAPTURABLE = False",
            )
            made.strategy.close()

    @check(needs=_capturable)
    def test_what_is_recorded_reads_its_inputs_at_replay(self) -> None:
        """A recorded callable gives at replay what it gives without: nothing is frozen."""
        made = self.compiled()
        bench = GraphBench(
            WholeGraphs(),
            model=made.model,
            compiled=lambda _: made.compiled.call,
            sizes=(1, 2, 4, 8),
            max_num_seqs=6,
            max_num_tokens=TOKENS,
        )
        if dropped := [event.dropped for event in bench.captured if event.dropped]:
            ask(held=False, found=f"recording it failed: {dropped[0]}")
        for number, result in random_steps(bench, 8):
            for got, wanted in zip(result.hidden, result.expected, strict=True):
                ask_equal(got, wanted, f"replay {number}, {result.decision}")
        made.strategy.close()

    @check()
    def test_two_engines_of_one_process(self) -> None:
        """Nothing is shared between two engines of one process, also of one model class."""
        pair = [self.compiled(ToyDecoder(layers, seed=layers)) for layers in (2, 3)]
        for num_tokens in (5, 1, 9):
            for made in pair:
                layers = len(made.model.layers)
                made.compare(num_tokens, f"the engine of {layers} layers", self.numerics)
        pair[0].strategy.close()
        pair[1].compare(4, "an engine whose neighbour was closed", self.numerics)
        pair[1].strategy.close()

    @check()
    def test_nothing_global_is_left_changed(self) -> None:
        """Compiling and serving leave dynamo's and inductor's settings, the environment and the
        random numbers as they were, also where compiling fails.
        """
        model = ToyDecoder(2)
        with unchanged("compiling and a step"):
            made = self.compiled(model)
            run_step(made.compiled.call, made.model, 3)
            made.strategy.close()
        with unchanged("a compilation that failed"):
            try:
                self.compiled(BranchesAtSeven(1), backend=FailingBackend())
            # What it raises is its own business; what it leaves isn't.
            except Exception as error:  # noqa: BLE001 - contained, see above
                del error

    @check()
    def test_close_lets_go_of_the_model(self) -> None:
        """`close` frees what the strategy holds: afterwards nothing keeps the model alive."""
        made = self.compiled()
        gone = weakref.ref(made.model.embedding.weight)
        run_step(made.compiled.call, made.model, 3)
        made.strategy.close()
        del made
        gc.collect()
        ask(gone() is None, "the model's weights are still alive after close()")
