"""The base of strategies that record each planned shape once and replay it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from engine.batch import BatchShape
from engine.errors import EngineError
from engine.events import GraphCaptured, Notice, PhaseAdvanced
from engine.forward_context import current
from engine.graph_device import GraphDevice
from engine.recording.checkpoints import Checkpoint, Probe, first_divergence
from engine.recording.shapes import RECORDING_SETTINGS, ShapeTable
from engine.strategies import Decision, GraphJob, GraphStrategy, ModelInputs

if TYPE_CHECKING:
    import torch

_UNCOVERED = "no recorded shape covers the batch"
_FIRST_MET = "first met: recorded while it runs"
_NOT_FROM_THIS = "first met by a batch of another kind"


@dataclass(frozen=True)
class Replay:
    """What was recorded of one shape.

    Attributes:
        run: runs it on what the static buffers hold; returns hidden [T, H].
        checkpoints: what a replay leaves at each break op; filled only when debugging.
    """

    run: Callable[[], torch.Tensor]
    checkpoints: tuple[Checkpoint, ...] = ()


@dataclass(frozen=True)
class _Addresses:
    """Where a recording reads its inputs."""

    ids: int
    positions: int
    num_tokens: int
    caches: tuple[int, ...]

    @classmethod
    def of(cls, inputs: ModelInputs) -> _Addresses:
        return cls(
            inputs.input_ids.data_ptr(),
            inputs.positions.data_ptr(),
            inputs.input_ids.shape[0],
            tuple(cache.data_ptr() for cache in current().caches),
        )


class RecordingStrategy(GraphStrategy):
    """Records each planned shape once and replays it.

    A subclass implements `plan` and `record`, and declares one label in `KINDS`.
    """

    SETTINGS = RECORDING_SETTINGS
    BREAKS_AT_UNKNOWN: ClassVar[bool] = False
    """Whether it runs operators that nobody vouches for outside its graphs, if it can see them."""

    job: GraphJob
    device: GraphDevice

    @abstractmethod
    def record(self, inputs: ModelInputs) -> Replay:
        """Record one forward pass; called inside the device's session and a forward context.

        Raises:
            RuntimeError: it can't be recorded; the shape is then given up.
        """

    def record_whole(self, inputs: ModelInputs) -> Replay:
        """Record one forward pass as one graph; when debugging, with copies at the break ops.

        What a strategy that doesn't cut a pass into pieces returns from `record`.

        Raises:
            RuntimeError: it can't be recorded, or launched nothing.
        """
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

    def refusal(self) -> str:
        """Say why nothing of this model can be recorded; empty when it can."""
        compiled, names = self.job.compiled, self.job.unknown_ops
        if not compiled.capturable:
            return "the compiled model can't be recorded"
        if not names or (self.BREAKS_AT_UNKNOWN and compiled.watchable):
            return ""
        return (
            f"the model calls {', '.join(names)}, not known to be safe in a recorded graph; its "
            "author defines such an operator with engine.ops.break_op, or vouches for it with "
            "engine.ops.declare_recordable"
        )

    def may_record(self, padded: BatchShape, live: BatchShape) -> bool:
        """Say whether a lazy strategy may record a shape from a batch of a given live shape.

        What is recorded must fit every batch that is padded to the shape, and attention may take
        a shorter way for decode.
        """
        return padded.uniform_decode == live.uniform_decode

    def on_demand(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Return the shapes to record when a batch first needs them, besides those of the plan."""
        return self.plan(job) if job.lazy else ()

    def make_room(self, shape: BatchShape) -> bool:
        """Say whether a shape may be recorded although the memory budget is used up.

        A strategy that forgets another graph first may say so: the pool gives its memory to the
        next recording.
        """
        return False

    @property
    def recorded(self) -> tuple[BatchShape, ...]:
        """The shapes that are recorded now, the oldest recording first."""
        return tuple(self._replays)

    def forget(self, shape: BatchShape) -> None:
        """Free the graph of a shape, which may then be recorded again if it is `on_demand`."""
        del self._replays[shape], self._addresses[shape]

    def call(self, inputs: ModelInputs) -> torch.Tensor:
        """Run the compiled model without recording."""
        return self.job.compiled.call(inputs.input_ids, inputs.positions)

    def prepare(self, job: GraphJob) -> None:
        """Record the planned shapes, or none yet when lazy."""
        if job.device is None:
            raise RuntimeError(f"graph mode {self.NAME} was given no graph device")
        self.job, self.device = job, job.device
        self._replays: dict[BatchShape, Replay] = {}
        self._addresses: dict[BatchShape, _Addresses] = {}
        self._uncovered = _UNCOVERED
        if refusal := self.refusal():
            self._give_up(refusal)
            return
        planned = self.plan(job)
        if not job.lazy:
            for done, shape in enumerate(planned, 1):
                with job.dummy_batch(shape) as inputs:
                    self._record(shape, inputs)
                job.events.emit(PhaseAdvanced("capture", done, len(planned), str(shape.num_tokens)))
        self._offer((*self._replays, *self.on_demand(job)))

    def _give_up(self, reason: str) -> None:
        if self.job.abort_on_failure:
            raise EngineError(f"graph mode {self.NAME}: {reason}")
        self.job.events.emit(Notice(f"graph mode {self.NAME} records nothing: {reason}"))
        self._uncovered = "the model can't be recorded"
        self._offer(())

    def _offer(self, shapes: Iterable[BatchShape]) -> None:
        self._offered = tuple(shapes)
        self._decode = ShapeTable(s for s in self._offered if s.uniform_decode)
        self._mixed = ShapeTable(s for s in self._offered if not s.uniform_decode)

    def _record(self, shape: BatchShape, inputs: ModelInputs) -> bool:
        """Record one shape; when that fails it is given up and the device stays usable."""
        start, before = perf_counter(), self.device.memory()
        if (over := self._over_budget(before)) and not self.make_room(shape):
            # No failure: what was reserved for graphs is used up, and the step runs without one.
            self.job.events.emit(GraphCaptured(self.KINDS[0], shape.num_tokens, 0.0, 0, over))
            return False
        dropped = ""
        try:
            with self.device.session():
                # The first run of a shape loads modules and tunes kernels, which no graph may
                # contain.
                self.call(inputs)
                self._replays[shape] = self.record(inputs)
            self._addresses[shape] = _Addresses.of(inputs)
        except Exception as error:
            # Whatever a model or an operator raises while it is recorded concerns this shape only.
            dropped = f"{type(error).__name__}: {error}"
            if self.job.abort_on_failure:
                raise EngineError(
                    f"graph mode {self.NAME}: recording {shape.num_tokens} tokens failed: "
                    f"{dropped}; with --on-capture-failure drop it would run without a graph"
                ) from error
        seconds, grown = perf_counter() - start, self.device.memory() - before
        event = GraphCaptured(self.KINDS[0], shape.num_tokens, seconds, grown, dropped)
        self.job.events.emit(event)
        return not dropped

    def _over_budget(self, used: int) -> str:
        budget = self.job.memory_budget
        if budget is None or used < budget:
            return ""
        return f"{used} bytes are in use of the {budget} that graphs may take"

    def dispatch(self, shape: BatchShape) -> Decision:
        """Pad to the smallest recorded shape that covers the batch."""
        padded = None
        if shape.uniform_decode and shape.max_query_len == 1:
            padded = self._decode.cover(shape.num_tokens)
        if padded is None:
            padded = self._mixed.cover(shape.num_tokens)
        if padded is None:
            return Decision("eager", shape, self._uncovered)
        if padded in self._replays:
            return Decision(self.KINDS[0], padded)
        if not self.may_record(padded, shape):
            return Decision("eager", shape, _NOT_FROM_THIS)
        return Decision(self.KINDS[0], padded, _FIRST_MET)

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Replay what was recorded, or call the model where nothing was.

        Raises:
            RuntimeError: the inputs aren't where the recording reads them; or, when debugging,
                the replay differs from the step without graphs.
        """
        if decision.reason:
            if decision.kind != "eager":
                self._record_live(decision.padded, inputs)
            return self.call(inputs)
        replay = self._replays[decision.padded]
        self._check_addresses(decision.padded, inputs)
        if self.job.debug:
            return self._compare(replay, inputs)
        return replay.run()

    def _record_live(self, shape: BatchShape, inputs: ModelInputs) -> None:
        """Record a shape on the batch that met it first; the caller runs the step afterwards.

        Break ops run during the recording on what the segments haven't computed yet; the run that
        follows writes their KV rows again.
        """
        if not self._record(shape, inputs):
            self._offer(s for s in self._offered if s != shape)

    def _check_addresses(self, shape: BatchShape, inputs: ModelInputs) -> None:
        recorded = self._addresses[shape]
        if (
            inputs.input_ids.data_ptr() != recorded.ids
            or inputs.positions.data_ptr() != recorded.positions
            or inputs.input_ids.shape[0] != recorded.num_tokens
        ):
            raise RuntimeError(
                f"the graph of {recorded.num_tokens} tokens reads static buffers; it was given "
                f"other inputs, of {inputs.input_ids.shape[0]} tokens"
            )
        if self.job.debug and _Addresses.of(inputs) != recorded:
            raise RuntimeError("the KV cache was moved after the graphs were recorded")

    def _compare(self, replay: Replay, inputs: ModelInputs) -> torch.Tensor:
        """Replay, run the same step without graphs, and compare from break op to break op."""
        hidden = replay.run().clone()
        # Copies: the step without graphs may reuse what a graph's memory pool holds.
        found = [checkpoint.copy() for checkpoint in replay.checkpoints]
        context, probe = current(), Probe()
        context.recorder = probe
        try:
            wanted = self.call(inputs)
        finally:
            context.recorder = None
        # A strategy that notes no checkpoints is compared by its result alone.
        passed = probe.checkpoints if found else []
        place = first_divergence(
            [*passed, Checkpoint("in the result", (wanted,))],
            [*found, Checkpoint("in the result", (hidden,))],
            context.shape.num_tokens,
            inputs.input_ids.shape[0],
        )
        if place:
            raise RuntimeError(
                f"the {self.KINDS[0]} graph of {inputs.input_ids.shape[0]} tokens differs from "
                f"the step without graphs, first {place}"
            )
        return hidden

    def close(self) -> None:
        """Free the graphs."""
        self._replays = {}
