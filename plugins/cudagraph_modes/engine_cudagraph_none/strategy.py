"""The strategy that records nothing."""

from __future__ import annotations

import torch

from engine.batch import BatchShape
from engine.strategies import Decision, GraphJob, GraphStrategy, ModelCall, ModelInputs


class NoGraphs(GraphStrategy):
    """Calls the compiled model on the live, unpadded batch."""

    NAME = "none"
    SUMMARY = "launch every step; works on any device, nothing is padded or recorded"
    NEEDS_GRAPHS = False

    _call: ModelCall

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan nothing."""
        del job
        return ()

    def prepare(self, job: GraphJob) -> None:
        """Keep the callable."""
        self._call = job.compiled.call

    def dispatch(self, shape: BatchShape) -> Decision:
        """Run the batch as it is."""
        return Decision("eager", shape, "graphs are off")

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Call the model."""
        del decision
        return self._call(inputs.input_ids, inputs.positions)
