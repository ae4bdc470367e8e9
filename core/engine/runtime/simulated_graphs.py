"""A graph device without a GPU: what would be wrong on CUDA fails here too.

Recording runs nothing. Every operator's result is poisoned memory until a replay computes it from
what the recorded addresses hold at that time. Refused are host reads, shapes made from values,
operators that nobody vouches for, and tensors that were freed or moved since the recording. What
it can't see is what a compiled callable does between its break ops; see `simulated_graphs_region`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from engine.forward_context import current
from engine.graph_device import Recorder
from engine.ops import is_break_op
from engine.runtime.simulated_graphs_memory import Pool
from engine.runtime.simulated_graphs_ops import record_call
from engine.runtime.simulated_graphs_region import Item, Region, RegionPart
from engine.strategies import ModelCall

_HOST_READS = frozenset(
    {
        torch.Tensor.cpu,
        torch.Tensor.item,
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.__array__,
    }
)


class SimulatedGraph:
    """What was recorded between `begin` and `end`."""

    def __init__(self, device: SimulatedGraphDevice, items: list[Item]) -> None:
        self._device, self._items = device, items

    def replay(self) -> None:
        """Run what was recorded, in order, on what the recorded addresses hold.

        Raises:
            RuntimeError: an address is gone, a shape changed, or a recording is in force.
        """
        if self._device.recording:
            raise RuntimeError("a graph can't be replayed while another is recorded")
        self._device.check_aliases()
        with torch.inference_mode():
            for item in self._items:
                item.replay()


class SimulatedGraphDevice:
    """Records operator calls on the CPU."""

    name = "simulated"

    def __init__(self) -> None:
        self._pool = Pool()
        self._fakes = FakeTensorMode()
        self._mode = _RecordingMode(self)
        self._in_session = False
        self._items: list[Item] | None = None
        self._sink: list[Item] = []
        """Where what is recorded goes: the items, or those of a compiled callable's break op."""
        self._region: Region | None = None
        self._illegal = ""

    @property
    def recording(self) -> bool:
        """Whether operators are recorded instead of run."""
        return self._items is not None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Enter a context for recordings; one that an exception left open is given up."""
        if self._in_session:
            raise RuntimeError("a recording session is in force already")
        self._in_session = True
        try:
            with self._mode:
                yield
        finally:
            self._in_session, self._items, self._region, self._illegal = False, None, None, ""

    def begin(self) -> None:
        """Start recording.

        Raises:
            RuntimeError: outside a session, or while recording.
        """
        if not self._in_session or self.recording:
            where = "while recording" if self.recording else "outside a session"
            raise RuntimeError(f"begin() {where}")
        self._items = self._sink = []

    def end(self) -> SimulatedGraph | None:
        """Stop recording; None when nothing was recorded.

        Raises:
            RuntimeError: nothing is being recorded, or something illegal was.
        """
        items, self._items = self._items, None
        if items is None:
            raise RuntimeError("no recording is in force")
        if self._illegal:
            raise RuntimeError(f"the recording is invalid: {self._illegal}")
        if self._region is not None:
            for item in items:
                if isinstance(item, RegionPart) and item.region is self._region:
                    item.last = len(self._region.stops) - 1
        return SimulatedGraph(self, items) if items else None

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor over the same memory that keeps nothing alive."""
        return self._pool.alias(tensor)

    def memory(self) -> int:
        """Return the bytes of the pool."""
        return self._pool.num_bytes

    def check_aliases(self) -> None:
        """Check that no alias outlived memory that isn't the pool's.

        Raises:
            RuntimeError: one did.
        """
        self._pool.check_aliases()

    def adopt(self, call: ModelCall, *, compiled: bool) -> ModelCall:
        """Return the form of a callable that can be recorded here."""

        def recordable(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            if compiled and self._in_session:
                # Dynamo's guards fail while a dispatch mode is in force.
                with _disable_current_modes():
                    if self.recording:
                        return self._record_region(call, (input_ids, positions))
                    return call(input_ids, positions)
            if not self.recording:
                return call(input_ids, positions)
            begun = self._items
            with _HostReads(self):
                hidden = call(input_ids, positions)
            # After a break, the result may be what the strategy ran between two graphs.
            if self._items is begun and not self._pool.owns(hidden):
                raise RuntimeError(
                    "the model's result comes from no recorded operator; a replay couldn't renew it"
                )
            return hidden

        return recordable

    def _record_region(self, call: ModelCall, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        region = Region(self._pool, call, inputs)
        self._add(RegionPart(region, first=0))
        self._region = region
        try:
            with self._receive_break_ops():
                result = call(*inputs)
        except RuntimeError as error:
            self._illegal = self._illegal or str(error)
            raise
        finally:
            self._region = None
        return region.leave(result)

    def _add(self, item: Item) -> None:
        self._sink.append(item)

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Receive an operator during a session."""
        if not self.recording:
            return func(*args, **kwargs)
        try:
            if is_break_op(func):
                with self._receive_break_ops():
                    return func(*args, **kwargs)
            return self._record(func, args, kwargs)
        except RuntimeError as error:
            self._illegal = self._illegal or str(error)
            raise

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Composite operators arrive whole in inference mode; their parts are what is launched.
        if isinstance(func, OpOverload):
            with self._mode:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result, call = record_call(self._pool, self._fakes, func, args, kwargs)
        if call is not None:
            self._add(call)
        return result

    @contextmanager
    def _receive_break_ops(self) -> Iterator[None]:
        """Receive break ops before the strategy's recorder does."""
        context = current()
        theirs = context.recorder
        context.recorder = _Entry(self, theirs)
        try:
            yield
        finally:
            context.recorder = theirs

    def enter(
        self, theirs: Recorder | None, op: str, call: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        """Receive a break op: it goes to the strategy's recorder, or is recorded like the rest."""
        region = self._region
        if region is None:
            self._hand_over(theirs, op, call, args)
            return
        items, stop = self._items, region.enter(op, args)
        self._sink = stop.items
        self._hand_over(theirs, op, call, stop.args)
        if self._items is not None:
            self._sink = self._items
            if self._items is not items:
                self._items.append(RegionPart(region, first=len(region.stops)))
        stop.give_back(args)

    def _hand_over(
        self, theirs: Recorder | None, op: str, call: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        run = partial(self._run_break_op, call)
        # What a recorder itself launches while the recording goes on is recorded as well.
        with self._mode:
            if theirs is None:
                run(*args)
            else:
                theirs.break_at(op, run, args)

    def _run_break_op(self, call: Callable[..., Any], *args: Any) -> None:
        with _HostReads(self) if self.recording else nullcontext():
            call(*args)


class _Entry:
    """Stands before a strategy's recorder."""

    def __init__(self, device: SimulatedGraphDevice, theirs: Recorder | None) -> None:
        self._device, self._theirs = device, theirs

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._device.enter(self._theirs, op, call, args)


class _RecordingMode(TorchDispatchMode):
    """Hands every operator to the device."""

    def __init__(self, device: SimulatedGraphDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._device.dispatch(func, args, kwargs or {})


class _HostReads(TorchFunctionMode):
    """Refuses reads that a CPU tensor answers without any operator."""

    def __init__(self, device: SimulatedGraphDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._device.recording and func in _HOST_READS:
            raise RuntimeError(
                f"Tensor.{func.__name__} waits for the device, which a recorded graph can't"
            )
        return func(*args, **(kwargs or {}))
