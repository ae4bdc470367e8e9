"""Models, backends and graph modes that the checks of the kit provoke a plugin with."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import fx

from engine.batch import BatchShape
from engine.facts import GraphSupport
from engine.recording import RecordingStrategy, Replay, mixed_shape
from engine.runtime.simulated_graphs import SimulatedGraphDevice
from engine.strategies import Backend, GraphJob, ModelInputs
from engine.testing.compiling import ToyDecoder
from engine.testing.recordable_attention import RecordableAttention


class BranchesAtSeven(ToyDecoder):
    """A model whose Python takes another way for seven tokens."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H]."""
        hidden = super().forward(input_ids, positions)
        return hidden * 2 if input_ids.shape[0] == 7 else hidden


class ScaledDecoder(ToyDecoder):
    """A decoder whose Python differs from the plain one by a constant."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H]."""
        return super().forward(input_ids, positions) * 1.5


class Fussy(ToyDecoder):
    """Can't be recorded for some token counts.

    Args:
        failures: what is raised for each; None reads a value on the host.
    """

    def __init__(self, failures: Mapping[int, Exception | None]) -> None:
        super().__init__(layers=2)
        self.failures, self.device = failures, SimulatedGraphDevice()

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H], or fail while recording."""
        hidden = super().forward(input_ids, positions)
        if self.device.recording and input_ids.shape[0] in self.failures:
            if (error := self.failures[input_ids.shape[0]]) is not None:
                raise error
            hidden = hidden * float(hidden.sum())
        return hidden


STRANGE = "engine_conformance::strange"


@torch.library.custom_op(STRANGE, mutates_args=())
def _strange(x: torch.Tensor) -> torch.Tensor:
    """Stand for an operator of a third party: it looks at values, and nobody vouches for it."""
    return x * (2.0 if float(x.abs().sum()) > 0 else 3.0)


_strange.register_fake(torch.empty_like)


class Strange(ToyDecoder):
    """A model that calls an operator which nobody vouches for."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H]."""
        doubled: torch.Tensor = _strange(super().forward(input_ids, positions))
        return doubled.sin()


class ExactBackend(Backend):
    """Runs graphs as they are; an artifact is a ticket for the very callable that was compiled.

    So an artifact that is taken for another graph's gives that other graph's wrong results.

    Attributes:
        compiled: the graphs, in the order in which they were compiled.
        loaded: how many artifacts were restored.
    """

    NAME = "exact"
    SUMMARY = "run graphs as they are; artifacts are tickets"
    CACHEABLE = True
    _kept: ClassVar[dict[bytes, Callable[..., Any]]] = {}

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self.compiled: list[fx.GraphModule] = []
        self.loaded = 0
        self._tickets: dict[int, bytes] = {}

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Return the graph's own forward."""
        self.compiled.append(graph)
        return graph.forward

    def save(self, compiled: Callable[..., Any]) -> bytes | None:
        """Return a new ticket."""
        ticket = secrets.token_bytes(16)
        self._kept[ticket] = compiled
        return ticket

    def load(
        self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Return what the ticket is for.

        Raises:
            ValueError: it is no ticket.
        """
        if artifact not in self._kept:
            raise ValueError("no such ticket")
        self.loaded += 1
        return self._kept[artifact]


class UntouchedBackend(ExactBackend):
    """Must not be called."""

    NAME = "untouched"

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Refuse.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("USES_BACKEND is false, and the backend was called")

    def torch_backend(self) -> Callable[..., Any]:
        """Refuse.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("USES_BACKEND is false, and the backend was asked for")


class FailingBackend(ExactBackend):
    """Compiles nothing."""

    NAME = "failing"

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Fail.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("this backend compiles nothing")


class WholeGraphs(RecordingStrategy):
    """Records any batch as one graph: the plainest way to find out what may be recorded."""

    NAME = "whole_graphs"
    SUMMARY = "record whole steps, for the conformance kit"
    MIN_SUPPORT = GraphSupport.ALWAYS
    KINDS: ClassVar[tuple[str, ...]] = ("whole",)

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan every size for any batch."""
        return tuple(mixed_shape(n, job.max_num_seqs) for n in sorted(job.sizes, reverse=True))

    def record(self, inputs: ModelInputs) -> Replay:
        """Record the pass."""
        return self.record_whole(inputs)


class HostAttention(RecordableAttention):
    """Attention that may never be recorded: each step reads the live batch on the host."""

    NAME = "host"
    GRAPH_SUPPORT = GraphSupport.NEVER

    def forward(self, *args: Any) -> None:
        """Attend, after a look at the host's numbers."""
        metadata = args[6]
        if int(metadata.slots.max()) >= 0:
            super().forward(*args)
        else:
            args[3].zero_()


class DecodeAttention(RecordableAttention):
    """Attention that may be recorded for decode only: other batches read the host."""

    NAME = "decode"
    GRAPH_SUPPORT = GraphSupport.UNIFORM_DECODE

    def forward(self, *args: Any) -> None:
        """Attend; any batch but decode needs the host."""
        metadata = args[6]
        if not metadata.shape.uniform_decode:
            _ = int(metadata.slots.max())
        super().forward(*args)
