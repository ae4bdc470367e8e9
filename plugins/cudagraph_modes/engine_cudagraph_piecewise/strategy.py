"""One graph for each stretch between two break ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from engine.batch import BatchShape
from engine.forward_context import current
from engine.graph_device import GraphDevice
from engine.recording import RecordingStrategy, Replay, mixed_shape
from engine.strategies import GraphJob, ModelInputs


class Segments:
    """Records a forward pass as a list of graphs with the break ops between them.

    It is in force (as the forward context's recorder) while the model runs once under capture.
    A break op that is entered ends the segment, runs with what the step's context says, and
    begins the next one. It needs no graph of the model's code, so it works under every compile
    mode.
    """

    def __init__(self, device: GraphDevice) -> None:
        self._device = device
        self.calls: list[Callable[[], None]] = []

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """End the segment, run the operator, begin the next segment."""
        del op
        self._end_segment()
        call(*args)
        kept = [self._device.alias(a) if isinstance(a, torch.Tensor) else a for a in args]
        self.calls.append(partial(call, *kept))
        self._device.begin()

    def _end_segment(self) -> None:
        if (graph := self._device.end()) is not None:
            self.calls.append(graph.replay)

    def record(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run `call` under capture; returns what it returned."""
        context = current()
        self._device.begin()
        context.recorder = self
        try:
            result = call()
        finally:
            context.recorder = None
        self._end_segment()
        return result


class Piecewise(RecordingStrategy):
    """Pads to a recorded number of tokens; break ops run on the live batch between segments."""

    NAME = "piecewise"
    SUMMARY = "replay what lies between attention calls; any batch, any attention implementation"
    KINDS = ("piecewise",)

    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Plan one shape for each size; attention isn't recorded, so the kind doesn't matter."""
        return tuple(mixed_shape(n, job.max_num_seqs) for n in sorted(job.sizes, reverse=True))

    def record(self, inputs: ModelInputs) -> Replay:
        """Record the pass as segments."""
        segments = Segments(self.device)
        kept = self.device.alias(segments.record(lambda: self.call(inputs)))

        def replay() -> torch.Tensor:
            for call in segments.calls:
                call()
            return kept

        return replay
