"""Compiles graphs for token ranges through a backend and the artifact store.

Public: compile strategies decide what the graphs are; what happens to one is the same for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from engine.artifact_comparison import nearest
from engine.artifacts import artifact_key
from engine.batch import BatchShape
from engine.environment import environment_factors
from engine.errors import CompileError, ConfigError
from engine.events import CompiledUnit, EventBus, PhaseAdvanced
from engine.graph_hash import graph_hash
from engine.passes import apply_passes
from engine.plugin import Plugin
from engine.token_range import Shapes, TokenRange

if TYPE_CHECKING:
    from engine.strategies import CompileJob, CompileReport, ModelCall

logger = logging.getLogger(__name__)


@contextmanager
def timed(report: CompileReport, phase: str, events: EventBus | None = None) -> Iterator[None]:
    """Add the seconds of a block to a phase of the report; say that it begins where one listens."""
    if events is not None:
        events.emit(PhaseAdvanced("compile", 0, detail=phase))
    start = perf_counter()
    try:
        yield
    finally:
        report.seconds[phase] = report.seconds.get(phase, 0.0) + perf_counter() - start


def dispatch(steps: Sequence[tuple[TokenRange, ModelCall]]) -> ModelCall:
    """Return one callable that looks its step up by the number of tokens; the first range wins."""
    if len(steps) == 1:
        return steps[0][1]
    table: list[Any] = [None] * (max(tokens.high for tokens, _ in steps) + 1)
    for tokens, step in reversed(steps):
        table[tokens.low : tokens.high + 1] = [step] * (tokens.high - tokens.low + 1)

    def run(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = table[input_ids.shape[0]](input_ids, positions)
        return hidden

    return run


def warm_up(job: CompileJob, steps: Sequence[tuple[TokenRange, ModelCall]]) -> None:
    """Run each step once, on its smallest batch: what loads lazily is then loaded."""
    for tokens, step in steps:
        shape = BatchShape(tokens.low, 1, tokens.low, uniform_decode=False)
        with job.dummy_batch(shape) as inputs:
            step(inputs.input_ids, inputs.positions)


class GraphCompiler:
    """Turns graphs into callables: from the artifact store, or by compiling.

    Args:
        job: gives the backend, the store, the passes and the event bus.
        fingerprint: of the strategy that made the graphs.
        report: hits, misses and seconds are added to it.
    """

    def __init__(self, job: CompileJob, fingerprint: str, report: CompileReport) -> None:
        self._job = job
        self._report = report
        self._factors = {
            **environment_factors(job.device),
            **job.key_factors,
            "strategy": fingerprint,
            "backend": _identity(job.backend),
            "passes": " ".join(map(_identity, job.passes)),
        }

    def apply_passes(self, graph: fx.GraphModule) -> None:
        """Run the passes that work on the whole graph, in place.

        The graph that comes of it is a part of every key from here on: two models share artifacts
        when all of their code is the same, never a piece of one that looks like one of the other.
        """
        with timed(self._report, "passes"):
            self._count(apply_passes(graph, self._job.passes, "graph"))
        self._factors["whole graph"] = graph_hash(graph) or "can't be told"

    def _count(self, fired: dict[str, int]) -> None:
        for name, times in fired.items():
            self._report.passes[name] = self._report.passes.get(name, 0) + times

    def compile(self, unit: str, graph: fx.GraphModule, tokens: TokenRange) -> Callable[..., Any]:
        """Return a callable that takes the graph's placeholders, for numbers of tokens in a range.

        Args:
            unit: what the graph is called in events.
            graph: as traced; left unchanged.
            tokens: the range.

        Raises:
            CompileError: the backend's code would be right for a part of the range only.
            ConfigError: only kept artifacts may be used, and there is none; says what differs.
        """
        name = f"{unit} [{tokens}]"
        start = perf_counter()
        call, cached = self._load_or_make(name, graph, tokens)
        seconds = perf_counter() - start
        phase = "load" if cached else "compile"
        self._report.seconds[phase] = self._report.seconds.get(phase, 0.0) + seconds
        self._report.cache_hits += cached
        self._report.cache_misses += not cached
        self._job.events.emit(CompiledUnit(name, seconds, cached=cached))
        return call

    def _load_or_make(
        self, name: str, graph: fx.GraphModule, tokens: TokenRange
    ) -> tuple[Callable[..., Any], bool]:
        """Return the callable, and whether it was loaded."""
        if not self._job.backend.CACHEABLE:
            return self._make_unkept(name, graph, tokens, "the backend keeps nothing"), False
        if (digest := graph_hash(graph)) is None:
            reason = "something in its graph can't be described"
            return self._make_unkept(name, graph, tokens, reason), False
        factors = {**self._factors, "graph": digest, "tokens": str(tokens)}
        key, store = artifact_key(factors), self._job.store
        if (call := self._load(key, graph, tokens)) is not None:
            return call, True
        if self._job.require_cache:
            raise ConfigError(
                f"compilation_config.require_cache: {name} is not among the artifacts in {store}"
                f"{nearest(store.stored(), factors)}; compile it first (`engine compile`, or one "
                "start without --require-cache)"
            )
        with store.lock(key):
            # Whoever held the lock before us may have made it.
            if (call := self._load(key, graph, tokens)) is not None:
                return call, True
            call = self._make(graph, tokens)
            if (data := self._job.backend.save(call)) is None:
                self._note_unkept(name, "the backend can't save it")
            else:
                about = {"unit": name, "model": self._job.model_name}
                store.put(key, data, factors, about)
        return call, False

    def _make_unkept(
        self, name: str, graph: fx.GraphModule, tokens: TokenRange, reason: str
    ) -> Callable[..., Any]:
        if self._job.require_cache:
            raise ConfigError(
                f"compilation_config.require_cache: {name} can't come from an artifact: {reason}; "
                "leave --require-cache out, or choose another backend or compile mode"
            )
        self._note_unkept(name, reason)
        return self._make(graph, tokens)

    def _note_unkept(self, name: str, reason: str) -> None:
        self._report.unkept[name] = reason
        if self._job.backend.CACHEABLE:
            logger.info("%s is compiled at each start: %s", name, reason)

    def _load(
        self, key: str, graph: fx.GraphModule, tokens: TokenRange
    ) -> Callable[..., Any] | None:
        if (data := self._job.store.get(key)) is None:
            return None
        copy, inputs = _specialized(graph, Shapes(tokens))
        try:
            call = self._job.backend.load(data, copy, inputs)
            if not callable(call):
                raise ValueError(f"it holds a {type(call).__name__}")
        except ValueError as error:
            self._job.store.reject(key, str(error))
            return None
        return call

    def _make(self, graph: fx.GraphModule, tokens: TokenRange) -> Callable[..., Any]:
        shapes = Shapes(tokens)
        copy, inputs = _specialized(graph, shapes)
        self._count(apply_passes(copy, self._job.passes, "piece"))
        call = self._job.backend.compile(copy, inputs, dynamic=not tokens.exact)
        if broken := shapes.assumptions():
            assumption, number = broken[0]
            raise CompileError(
                f"backend {self._job.backend.NAME} compiled a graph for {tokens} tokens under the "
                f"assumption `{assumption}`, which {number} tokens break",
                "choose another backend or a compile mode that keeps guards",
            )
        return call


def _identity(plugin: Plugin) -> str:
    """Return a plugin's fingerprint, with name, version and options also where it forgets them."""
    own, least = plugin.fingerprint(), Plugin.fingerprint(plugin)
    return own if own.startswith(least) else f"{least} {own}"


def _specialized(graph: fx.GraphModule, shapes: Shapes) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """Return a copy of a graph whose nodes have the shapes of a range, and its example inputs."""
    copied = fx.Graph()
    output = copied.graph_copy(graph.graph, {})
    copied.output(output)
    copy = fx.GraphModule(graph, copied)
    inputs = shapes.inputs(copy)
    with torch.inference_mode(mode=False), shapes.mode:
        _Propagate(copy, shapes).run(*inputs)
    return copy, inputs


class _Propagate(fx.Interpreter):
    """Works out the shape of every node, where compilers look for it."""

    def __init__(self, graph: fx.GraphModule, shapes: Shapes) -> None:
        super().__init__(graph)
        self._shapes = shapes

    def run_node(self, n: fx.Node) -> Any:
        """Run a node on fake tensors and note what it gives."""
        value = super().run_node(n)
        if n.op == "get_attr" and isinstance(value, torch.Tensor):
            value = self._shapes.mode.from_tensor(value)
        n.meta["example_value"] = value
        return value
