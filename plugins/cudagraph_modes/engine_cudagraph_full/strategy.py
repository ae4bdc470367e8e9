"""One graph for the whole forward pass."""

from __future__ import annotations

from engine.batch import BatchShape
from engine.facts import GraphSupport
from engine.recording import RecordingStrategy, Replay, mixed_shape
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
        return self.record_whole(inputs)
