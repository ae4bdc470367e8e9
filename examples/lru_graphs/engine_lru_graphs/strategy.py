"""Whole graphs of the shapes in use, under a budget."""

from __future__ import annotations

from collections import Counter, OrderedDict

import torch
from pydantic import BaseModel, ConfigDict, Field

from engine.batch import BatchShape
from engine.facts import GraphSupport
from engine.recording import RecordingStrategy, Replay, mixed_shape
from engine.strategies import Decision, GraphJob, ModelInputs


class LruOptions(BaseModel):
    """How much is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_graphs: int = Field(default=16, ge=1)
    """Graphs to keep; beyond that the one that wasn't used for the longest time goes."""
    after: int = Field(default=2, ge=1)
    """How often a shape must be met before it is recorded."""


class LruGraphs(RecordingStrategy):
    """Starts at once: nothing is recorded before serving.

    A shape that was met `after` times is recorded while it runs. When there are `max_graphs`, or
    the memory that the engine set aside for graphs is used up, the least recently used graph
    makes room: its memory goes back to the pool, from which the next recording takes it.
    """

    NAME = "lru_graphs"
    SUMMARY = "record whole steps on demand, keep the shapes in use; starts at once"
    MIN_SUPPORT = GraphSupport.UNIFORM_DECODE
    KINDS = ("lru",)
    OPTIONS = LruOptions

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan nothing: what is worth a graph shows while serving."""
        return ()

    def on_demand(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Offer every size for decode, and for other batches where attention allows it."""
        self._used: OrderedDict[BatchShape, None] = OrderedDict()
        self._met: Counter[BatchShape] = Counter()
        offered = [BatchShape.decode(size) for size in job.sizes if size <= job.max_num_seqs]
        if job.graph_support is GraphSupport.ALWAYS:
            offered += [mixed_shape(size, job.max_num_seqs) for size in job.sizes]
        return tuple(offered)

    def make_room(self, shape: BatchShape) -> bool:
        """Forget the graph that wasn't used for the longest time, if one is at least as large.

        The memory of a smaller one would not hold what is to be recorded.
        """
        for old in self._used:
            if old.num_tokens >= shape.num_tokens:
                self._forget(old)
                return True
        return False

    def _forget(self, shape: BatchShape) -> None:
        self.forget(shape)
        del self._used[shape]
        # It must be met as often again, or two shapes would take turns recording.
        self._met[shape] = 0

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Replay; or run as it is, recording what has been met often enough."""
        shape = decision.padded
        if decision.kind == "eager":
            return super().run(decision, inputs)
        if decision.reason:
            self._met[shape] += 1
            if self._met[shape] < self.options.after:
                return self.call(inputs)
            if len(self._used) >= self.options.max_graphs:
                self._forget(next(iter(self._used)))
        hidden = super().run(decision, inputs)
        if shape in self.recorded:
            self._used[shape] = None
            self._used.move_to_end(shape)
        return hidden

    def record(self, inputs: ModelInputs) -> Replay:
        """Record the pass as one graph."""
        return self.record_whole(inputs)
