"""One graph for the whole forward pass."""

from __future__ import annotations

import torch

from engine.batch import BatchShape
from engine.facts import GraphSupport
from engine.forward_context import current
from engine.recording import Probe, RecordingStrategy, Replay, mixed_shape
from engine.strategies import GraphJob, ModelInputs


class Full(RecordingStrategy):
    """Records whole steps: decode always, other batches where the attention allows it."""

    NAME = "full"
    SUMMARY = "replay whole steps from one graph each; uniform decode at least, any batch if able"
    MIN_SUPPORT = GraphSupport.UNIFORM_DECODE
    KINDS = ("full",)

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan decode shapes up to the number of sequences, and mixed ones where possible."""
        planned = [BatchShape.decode(size) for size in job.sizes if size <= job.max_num_seqs]
        if job.graph_support is GraphSupport.ALWAYS:
            planned += [mixed_shape(size, job.max_num_seqs) for size in job.sizes]
        # Largest first, so that smaller graphs reuse its memory.
        return tuple(sorted(planned, key=lambda s: (-s.num_tokens, s.uniform_decode)))

    def record(self, inputs: ModelInputs) -> Replay:
        """Record the pass as one graph; when debugging, with copies at the break ops."""
        context, probe = current(), Probe()
        self.device.begin()
        if self.job.debug:
            context.recorder = probe
        try:
            hidden = self.call(inputs)
        finally:
            context.recorder = None
        graph = self.device.end()
        if graph is None:
            raise RuntimeError("the step launched nothing that could be recorded")
        kept = self.device.alias(hidden)

        def run() -> torch.Tensor:
            graph.replay()
            return kept

        return Replay(run, tuple(probe.checkpoints))
