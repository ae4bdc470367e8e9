"""One graph for each stretch between two break ops."""

from __future__ import annotations

import torch

from engine.batch import BatchShape
from engine.ranges import profiling, step_range
from engine.recording import RecordingStrategy, Replay, mixed_shape
from engine.strategies import GraphJob, ModelInputs
from engine_cudagraph_piecewise.segments import Segments


class Piecewise(RecordingStrategy):
    """Pads to a recorded number of tokens; break ops run on the live batch between segments."""

    NAME = "piecewise"
    SUMMARY = "replay what lies between attention calls; any batch, any attention implementation"
    KINDS = ("piecewise",)
    BREAKS_AT_UNKNOWN = True

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan one shape for each size; attention isn't recorded, so the kind doesn't matter."""
        return tuple(mixed_shape(n, job.max_num_seqs) for n in sorted(job.sizes, reverse=True))

    def may_record(self, padded: BatchShape, live: BatchShape) -> bool:
        """Record from any batch: attention isn't recorded."""
        return True

    def record(self, inputs: ModelInputs) -> Replay:
        """Record the pass as segments."""
        segments = Segments(self.device, debug=self.job.debug)
        watch = bool(self.job.unknown_ops)
        kept = self.device.alias(segments.record(lambda: self.call(inputs), watch=watch))
        calls, graphs = tuple(segments.calls), frozenset(segments.graphs)

        def run() -> torch.Tensor:
            if profiling():
                for call in calls:
                    with step_range("segment" if call in graphs else "break op"):
                        call()
                return kept
            for call in calls:
                call()
            return kept

        return Replay(run, segments.checkpoints)
