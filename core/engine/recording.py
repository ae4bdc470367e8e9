"""What strategies that record share: which shapes, padding to one, recording one, lazily or not.

Public: a stranger's strategy says what it plans and how it records one batch, and gets dispatch,
transactional capture, lazy capture and events from here.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING

from engine.batch import BatchShape
from engine.events import GraphCaptured, PhaseAdvanced
from engine.graph_device import GraphDevice
from engine.strategies import Decision, GraphJob, GraphStrategy, ModelInputs

if TYPE_CHECKING:
    import torch

Replay = Callable[[], "torch.Tensor"]
"""Runs what was recorded on what the static buffers hold; returns hidden [T, H]."""

RECORDING_SETTINGS = frozenset(
    {
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "capture_size_policy",
        "capture",
        "on_capture_failure",
        "debug_graphs",
    }
)
"""The settings that every strategy that records reads."""

_UNCOVERED = "no recorded shape covers the batch"


def mixed_shape(num_tokens: int, max_num_seqs: int) -> BatchShape:
    """Return the padded shape that covers every batch of up to `num_tokens` tokens."""
    return BatchShape(num_tokens, min(num_tokens, max_num_seqs), num_tokens, uniform_decode=False)


class ShapeTable:
    """Finds the smallest recorded shape that covers a number of tokens; one list look-up."""

    def __init__(self, shapes: Iterable[BatchShape]) -> None:
        by_tokens = {shape.num_tokens: shape for shape in shapes}
        sizes = sorted(by_tokens)
        top = sizes[-1] if sizes else -1
        self._covering = [by_tokens[sizes[bisect_left(sizes, n)]] for n in range(top + 1)]

    def cover(self, num_tokens: int) -> BatchShape | None:
        """Return the shape to pad to, or None when the batch is larger than all."""
        return self._covering[num_tokens] if num_tokens < len(self._covering) else None


class RecordingStrategy(GraphStrategy):
    """Records each planned shape once and replays it.

    A subclass implements `plan` and `record`, and declares one label in `KINDS`.
    """

    SETTINGS = RECORDING_SETTINGS

    job: GraphJob
    device: GraphDevice

    @abstractmethod
    def record(self, inputs: ModelInputs) -> Replay:
        """Record one forward pass; called inside the device's session and a forward context.

        Raises:
            RuntimeError: it can't be recorded; the shape is then given up.
        """

    def call(self, inputs: ModelInputs) -> torch.Tensor:
        """Run the compiled model without recording."""
        return self.job.compiled.call(inputs.input_ids, inputs.positions)

    def prepare(self, job: GraphJob) -> None:
        """Record the planned shapes, or none yet when lazy."""
        if job.device is None:
            raise RuntimeError(f"graph mode {self.NAME} was given no graph device")
        self.job, self.device = job, job.device
        planned = self.plan(job)
        self._replays: dict[BatchShape, Replay] = {}
        if not job.lazy:
            for done, shape in enumerate(planned, 1):
                self._record(shape, lambda shape=shape: self._record_dummy(shape))  # type: ignore[misc]  # a default binds the loop variable
                job.events.emit(PhaseAdvanced("capture", done, len(planned), str(shape.num_tokens)))
        self._offer(planned if job.lazy else self._replays)

    def _offer(self, shapes: Iterable[BatchShape]) -> None:
        self._offered = tuple(shapes)
        self._decode = ShapeTable(s for s in self._offered if s.uniform_decode)
        self._mixed = ShapeTable(s for s in self._offered if not s.uniform_decode)

    def _record_dummy(self, shape: BatchShape) -> Replay:
        with self.job.dummy_batch(shape) as inputs:
            # The first run of a shape loads modules and tunes kernels, which no graph may contain.
            self.call(inputs)
            return self.record(inputs)

    def _record(self, shape: BatchShape, record: Callable[[], Replay]) -> bool:
        """Record one shape; when that fails it is given up and the device stays usable."""
        start, before = perf_counter(), self.device.memory()
        dropped = ""
        try:
            with self.device.session():
                self._replays[shape] = record()
        except RuntimeError as error:
            if self.job.abort_on_failure:
                raise
            dropped = f"{type(error).__name__}: {error}"
        seconds, grown = perf_counter() - start, self.device.memory() - before
        event = GraphCaptured(self.KINDS[0], shape.num_tokens, seconds, grown, dropped)
        self.job.events.emit(event)
        return not dropped

    def dispatch(self, shape: BatchShape) -> Decision:
        """Pad to the smallest recorded shape that covers the batch."""
        padded = None
        if shape.uniform_decode and shape.max_query_len == 1:
            padded = self._decode.cover(shape.num_tokens)
        if padded is None:
            padded = self._mixed.cover(shape.num_tokens)
        if padded is None:
            return Decision("eager", shape, _UNCOVERED)
        return Decision(self.KINDS[0], padded)

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Replay what was recorded, or call the model where nothing was."""
        if decision.reason:
            return self.call(inputs)
        replay = self._replays.get(decision.padded)
        return self._first_run(decision.padded, inputs) if replay is None else replay()

    def _first_run(self, shape: BatchShape, inputs: ModelInputs) -> torch.Tensor:
        """Record a shape when it is first met, on the live batch, and replay it.

        Break ops run during the recording on what the segments haven't computed yet; the run
        that follows writes their KV rows again.
        """
        self.call(inputs)
        if self._record(shape, lambda: self.record(inputs)):
            return self._replays[shape]()
        self._offer(s for s in self._offered if s != shape)
        return self.call(inputs)

    def close(self) -> None:
        """Free the graphs."""
        self._replays = {}
