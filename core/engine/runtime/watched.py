"""Steps that run as compiled but without graphs, and leave what every break op read and wrote."""

from __future__ import annotations

import torch

from engine.batch import BatchShape
from engine.forward_context import current
from engine.recording import Checkpoint, Probe
from engine.strategies import Decision, GraphJob, GraphStrategy, ModelCall, ModelInputs

_REASON = "the step is watched"


class WatchedSteps(GraphStrategy):
    """Stands for the graph strategy in force while somebody looks into the steps.

    Attributes:
        passes: the checkpoints of each forward pass so far, the hidden states last.
    """

    def __init__(self, name: str, call: ModelCall) -> None:
        super().__init__()
        self.NAME = name  # type: ignore[misc]  # it reports under the name of the one it stands for
        self._call = call
        self.passes: list[list[Checkpoint]] = []

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Record nothing."""
        return ()

    def prepare(self, job: GraphJob) -> None:
        """Record nothing."""

    def dispatch(self, shape: BatchShape) -> Decision:
        """Run every batch as it is."""
        return Decision("eager", shape, _REASON)

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Run a step and keep copies of what its break ops saw."""
        probe = Probe()
        context = current()
        context.recorder = probe
        try:
            hidden = self._call(inputs.input_ids, inputs.positions)
        finally:
            context.recorder = None
        result = Checkpoint("in the result", (hidden,)).copy()
        self.passes.append([*probe.checkpoints, result])
        return hidden
