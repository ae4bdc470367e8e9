"""Whole graphs for uniform decode, nothing recorded for the rest."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.batch import BatchShape
from engine.facts import GraphSupport
from engine.recording import RECORDING_SETTINGS
from engine.strategies import Decision, GraphJob, GraphStrategy, ModelInputs


class FullDecodeOnly(GraphStrategy):
    """The strategy `full`, told that only decode may be recorded."""

    NAME = "full_decode_only"
    SUMMARY = "replay decode steps from one graph each; prompts run as they are"
    MIN_SUPPORT = GraphSupport.UNIFORM_DECODE
    KINDS = ("full",)
    SETTINGS = RECORDING_SETTINGS

    _full: GraphStrategy | None = None

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan the decode shapes."""
        return job.make("full").plan(_decode_only(job))

    def prepare(self, job: GraphJob) -> None:
        """Record the decode shapes."""
        self._full = job.make("full")
        self._full.prepare(_decode_only(job))

    def dispatch(self, shape: BatchShape) -> Decision:
        """Pad decode steps; leave others as they are."""
        if not shape.uniform_decode:
            return Decision("eager", shape, "not a decode step")
        return self._prepared.dispatch(shape)

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Replay a decode step, or call the model."""
        return self._prepared.run(decision, inputs)

    @property
    def _prepared(self) -> GraphStrategy:
        if self._full is None:
            raise RuntimeError(f"graph mode {self.NAME} is not prepared")
        return self._full

    def close(self) -> None:
        """Free the graphs, if there was anything to prepare."""
        if self._full is not None:
            self._full.close()


def _decode_only(job: GraphJob) -> GraphJob:
    return replace(job, graph_support=GraphSupport.UNIFORM_DECODE)
