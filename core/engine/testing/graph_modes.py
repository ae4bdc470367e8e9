"""A small decoder under a graph strategy, with static buffers and a paged cache, step by step.

`GraphBench("full")` records on the simulated device; each `step` goes the way of the runner
(dispatch, fill the buffers, run) and is also computed without graphs, for comparison.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from engine.attention import AttentionInputs, AttentionPlugin
from engine.batch import BatchShape
from engine.events import Event, EventBus, GraphCaptured
from engine.forward_context import ForwardContext, forward_context
from engine.graph_device import GraphDevice
from engine.models import CausalLM
from engine.registry import Registry
from engine.request import EngineRequest
from engine.runtime.scheduler import Row
from engine.runtime.sequence import Sequence as Tokens
from engine.runtime.simulated_graphs import SimulatedGraphDevice
from engine.runtime.step_buffers import StepBuffers
from engine.sampling_params import SamplingParams
from engine.strategies import (
    CompiledModel,
    CompileReport,
    Decision,
    GraphJob,
    GraphStrategy,
    ModelCall,
    ModelInputs,
)
from engine.testing.compiling import ToyDecoder
from engine.testing.paged import PagedRunner
from engine.testing.recordable_attention import RecordableAttention

BLOCK_SIZE = 4
Chunks = Sequence[tuple[Hashable, Sequence[int]]]
"""Sequences and the tokens to append to each, in the order of the batch."""


@dataclass(frozen=True)
class StepResult:
    """One step.

    Attributes:
        decision: what the strategy decided.
        hidden: [n, H] of each chunk, copied.
        expected: the same, computed without graphs.
    """

    decision: Decision
    hidden: list[torch.Tensor]
    expected: list[torch.Tensor]

    @property
    def equal(self) -> bool:
        """Whether both agree within float32 rounding."""
        return all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-5)
            for a, b in zip(self.hidden, self.expected, strict=True)
        )


class GraphBench:
    """Runs steps through a graph strategy.

    Args:
        strategy: its name, or an instance.
        model: what is run; a toy decoder by default.
        attention: the implementation; one that may always be recorded by default.
        sizes: token counts to record.
        max_num_seqs, max_num_tokens: limits of a step.
        compiled: makes the callable of the model; None runs the module itself.
        device: where graphs are recorded.
        give_device: whether the strategy gets the device; one that records nothing needs none.
        make: builds strategies by name, for those that compose.
        **job: fields of `GraphJob` to set besides.
    """

    def __init__(
        self,
        strategy: str | GraphStrategy,
        *,
        model: CausalLM | None = None,
        attention: AttentionPlugin | None = None,
        sizes: Sequence[int] = (1, 2, 4, 8),
        max_num_seqs: int = 6,
        max_num_tokens: int = 32,
        compiled: Callable[[CausalLM], ModelCall] | None = None,
        device: GraphDevice | None = None,
        give_device: bool = True,
        make: Callable[[str], GraphStrategy] | None = None,
        **job: Any,
    ) -> None:
        self.model = model if model is not None else ToyDecoder(layers=2)
        self.torch_device = next(self.model.parameters()).device
        self.attention = attention if attention is not None else RecordableAttention()
        self.device = device if device is not None else SimulatedGraphDevice()
        self.reference = PagedRunner(
            self.model, self.attention, num_blocks=64, block_size=BLOCK_SIZE
        )
        self.caches = [cache.clone() for cache in self.reference.caches]
        self.buffers = StepBuffers(
            max_num_tokens=max_num_tokens,
            max_num_seqs=max_num_seqs,
            max_blocks=8,
            block_size=BLOCK_SIZE,
            device=self.torch_device,
            debug=bool(job.get("debug")),
        )
        self.events: list[Event] = []
        self.tokens: dict[Hashable, Tokens] = {}
        bus = EventBus()
        bus.subscribe(self.events.append)
        call = self.model if compiled is None else compiled(self.model)
        adopted = self.device.adopt(call, compiled=compiled is not None)
        settings: dict[str, Any] = {
            "compiled": CompiledModel(adopted, CompileReport(), watchable=compiled is None),
            "device": self.device if give_device else None,
            "sizes": tuple(sizes),
            "max_num_seqs": max_num_seqs,
            "graph_support": self.attention.GRAPH_SUPPORT,
            "memory_budget": None,
            "lazy": False,
            "abort_on_failure": False,
            "debug": False,
            "events": bus,
            "dummy_batch": self.dummy_batch,
            "make": make or strategy_named,
        }
        self.job = GraphJob(**{**settings, **job})
        self.strategy = strategy_named(strategy) if isinstance(strategy, str) else strategy
        with torch.inference_mode():
            self.strategy.prepare(self.job)

    @property
    def captured(self) -> list[GraphCaptured]:
        """The recordings so far, those given up included."""
        return [event for event in self.events if isinstance(event, GraphCaptured)]

    def recorded(self, kind: str) -> list[int]:
        """Return the token counts recorded under a label, in order."""
        return [e.num_tokens for e in self.captured if e.kind == kind and not e.dropped]

    @contextmanager
    def dummy_batch(self, shape: BatchShape) -> Iterator[ModelInputs]:
        """Set a forward context for a batch that writes nothing."""
        inputs, attention = self.buffers.fill_dummy(shape)
        with self.context(shape, attention):
            yield inputs

    def context(self, shape: BatchShape, inputs: AttentionInputs) -> Any:
        """Return a forward context of a step."""
        return forward_context(
            ForwardContext(
                shape=shape,
                attention=self.attention,
                metadata=self.attention.begin_step(inputs),
                specs=self.model.attention_specs,
                caches=self.caches,
            )
        )

    def step(self, chunks: Chunks) -> StepResult:
        """Run a step with and without graphs."""
        expected = self.reference.forward(chunks)
        rows = tuple(self._row(name, tokens) for name, tokens in chunks)
        shape = shape_of(rows)
        decision = self.strategy.dispatch(shape)
        inputs, attention = self.buffers.fill(rows, shape, decision.padded)
        with torch.inference_mode(), self.context(shape, attention):
            hidden = self.strategy.run(decision, inputs)[: shape.num_tokens].clone()
        for row in rows:
            row.sequence.num_computed_tokens += row.num_tokens
        parts = list(hidden.split([row.num_tokens for row in rows]))
        return StepResult(decision, parts, expected)

    def _row(self, name: Hashable, tokens: Sequence[int]) -> Row:
        if name not in self.tokens:
            request = EngineRequest(
                request_id=str(name), prompt_token_ids=[], params=SamplingParams()
            )
            self.tokens[name] = Tokens(request)
        sequence = self.tokens[name]
        sequence.token_ids += tokens
        # The very blocks of the reference, so that both caches can be compared.
        sequence.block_ids = list(self.reference.tables[name])
        return Row(sequence, len(tokens))

    def release(self, name: Hashable) -> None:
        """Forget a sequence; its blocks go to whoever comes next."""
        self.reference.release(name)
        del self.tokens[name]

    def written(self, name: Hashable, layer: int = 0) -> torch.Tensor:
        """Return what a layer's cache holds for a sequence."""
        return _blocks(self.caches[layer], self.reference.tables[name])

    def reserved(self, layer: int = 0) -> torch.Tensor:
        """Return what a layer's cache holds in the block that belongs to nobody."""
        return _blocks(self.caches[layer], [0])


def _blocks(cache: torch.Tensor, blocks: Sequence[int]) -> torch.Tensor:
    """Return copies of blocks of `RecordableAttention`'s cache."""
    slots = [block * BLOCK_SIZE + offset for block in blocks for offset in range(BLOCK_SIZE)]
    return cache[:, slots].clone()


def shape_of(rows: Sequence[Row]) -> BatchShape:
    """Return the live shape of a step, as the scheduler would."""
    counts = [row.num_tokens for row in rows]
    decode = all(row.num_tokens == 1 and row.sequence.num_computed_tokens for row in rows)
    return BatchShape(sum(counts), len(counts), max(counts), uniform_decode=bool(decode))


def strategy_named(name: str) -> GraphStrategy:
    """Build an installed graph strategy."""
    strategy: GraphStrategy = Registry().load("cudagraph_modes", name)()
    return strategy


def random_ids(count: int) -> list[int]:
    """Return tokens of the toy decoder; never 0, which padded rows hold."""
    return [random.randrange(1, 50) for _ in range(count)]  # noqa: S311 - not for secrets


def decode(names: Sequence[Hashable]) -> list[tuple[Hashable, list[int]]]:
    """Return a step in which each sequence decodes one random token."""
    return [(name, random_ids(1)) for name in names]


def random_steps(
    bench: GraphBench, count: int, *, shuffle: bool = False
) -> Iterator[tuple[int, StepResult]]:
    """Run random batches of up to five sequences that come, grow and go.

    Args:
        bench: where they run.
        count: batches to make; one without sequences isn't run.
        shuffle: put the sequences of each batch in a random order.

    Yields:
        The number of the batch, and what it gave.
    """
    alive: list[int] = []
    for number in range(count):
        chunks = [(n, random_ids(random.choice([1, 1, 1, 2]))) for n in alive]  # noqa: S311 - likewise
        if len(alive) < 5 and random.random() < 0.5:  # noqa: S311 - likewise
            chunks.append((number, random_ids(random.randrange(1, 9))))  # noqa: S311 - likewise
            alive.append(number)
        if shuffle:
            random.shuffle(chunks)
        if chunks:
            yield number, bench.step(chunks)
        for n in [n for n in alive if len(bench.tokens[n].token_ids) > 20]:
            alive.remove(n)
            bench.release(n)


def prefilled(bench: GraphBench, lengths: Sequence[int]) -> GraphBench:
    """Give a bench the sequences 0, 1, … with random prompts of these lengths.

    Raises:
        AssertionError: a step differs from the one without graphs.
    """
    for name, length in enumerate(lengths):
        if not bench.step([(name, random_ids(length))]).equal:
            raise AssertionError(f"the prompt of sequence {name} gave something else with graphs")
    return bench
