"""Records a forward pass as graphs with the break ops between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from engine.forward_context import current
from engine.graph_device import GraphDevice
from engine.ops import OperatorWatch, needs_values, unrecordable
from engine.recording import Checkpoint, Probe
from engine.recording.checkpoints import observed


class Segments:
    """A forward pass in pieces.

    It is in force (as the forward context's recorder) while the model runs once under capture.
    A break op that is entered ends the segment, runs with what the step's context says, and
    begins the next one. It needs no graph of the model's code, so it works under every compile
    mode.

    Args:
        device: what records.
        debug: leave a copy of what the break ops read and write, at each replay.

    Attributes:
        calls: graphs and break ops, in order.
        graphs: those of the calls that replay a graph.
    """

    def __init__(self, device: GraphDevice, *, debug: bool = False) -> None:
        self._device = device
        self._probe = Probe() if debug else None
        self.calls: list[Callable[[], None]] = []
        self.graphs: list[Callable[[], None]] = []

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The copies, when debugging."""
        return () if self._probe is None else tuple(self._probe.checkpoints)

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """End the segment, run the operator, begin the next segment."""
        self._end_segment()
        kept = [self._alias(arg) for arg in args]
        self._observe(op, args, kept, after=False)
        call(*args)
        self.calls.append(partial(call, *kept))
        self._observe(op, args, kept, after=True)
        self._device.begin()

    def break_at_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator between two segments although its author didn't ask for it.

        Its results are kept at the addresses of this first call.

        Raises:
            RuntimeError: the operator reads values on the host, so that what follows it depends
                on them.
        """
        if needs_values(func):
            raise RuntimeError(unrecordable(func))
        self._end_segment()
        result = func(*args, **kwargs)
        self.calls.append(_Again(func, self._alias_all(args), self._alias_all(kwargs), result))
        self._device.begin()
        return result

    def _alias(self, value: Any) -> Any:
        return self._device.alias(value) if isinstance(value, torch.Tensor) else value

    def _alias_all(self, values: Any) -> Any:
        return tree_map(self._alias, values)

    def _observe(self, op: str, args: tuple[Any, ...], kept: list[Any], *, after: bool) -> None:
        if self._probe is None:
            return
        copies = self._probe.look(op, args, after=after).tensors
        self.calls.append(partial(_copy, copies, observed(op, kept, after=after)))

    def _end_segment(self) -> None:
        if (graph := self._device.end()) is not None:
            self.calls.append(graph.replay)
            self.graphs.append(graph.replay)

    def record(self, call: Callable[[], torch.Tensor], *, watch: bool) -> torch.Tensor:
        """Run `call` under capture; returns what it returned.

        Args:
            call: runs the model.
            watch: also break at operators that nobody vouches for.
        """
        context = current()
        self._device.begin()
        context.recorder = self
        try:
            if watch:
                with OperatorWatch(self.break_at_unknown):
                    result = call()
            else:
                result = call()
        finally:
            context.recorder = None
        self._end_segment()
        return result


class _Again:
    """Calls an operator again and puts its results where they were the first time."""

    def __init__(self, func: Any, args: Any, kwargs: Any, first: Any) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self._kept = tree_leaves(first)

    def __call__(self) -> None:
        fresh = tree_leaves(self._func(*self._args, **self._kwargs))
        for kept, new in zip(self._kept, fresh, strict=True):
            if not isinstance(kept, torch.Tensor):
                continue
            if kept.shape != new.shape:
                raise RuntimeError(
                    f"operator {self._func} gave shape {list(kept.shape)} when it was recorded "
                    f"and now gives {list(new.shape)}"
                )
            kept.copy_(new)


def _copy(copies: tuple[torch.Tensor, ...], sources: list[torch.Tensor]) -> None:
    for copy, source in zip(copies, sources, strict=True):
        copy.copy_(source)
