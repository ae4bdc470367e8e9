"""A compiled callable inside a recording.

What a compiler made launches kernels that no dispatcher sees, so its operators can't be recorded
one by one. The callable as a whole is: at replay it runs again on the recorded inputs, in an empty
context, up to the break op where the graph ends. What it hands to a break op is copied to the
recorded addresses, what the break op wrote is copied back from there. So everything outside the
callable sees what it would see of a graph: values appear at replay, at fixed addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from engine.batch import BatchShape
from engine.forward_context import ForwardContext, forward_context
from engine.ops import written_arguments
from engine.runtime.simulated_graphs_memory import Address, Pool
from engine.strategies import ModelCall


class Item(Protocol):
    """Something recorded."""

    def replay(self) -> None:
        """Do it again."""
        ...


@dataclass
class Stop:
    """A break op that the callable entered.

    Attributes:
        op: its name.
        args: what it was called with; tensors are at recorded addresses.
        written: for each argument, whether the operator writes it.
        items: what it launched while the recording went on; empty when the recording ended there.
    """

    op: str
    args: tuple[Any, ...]
    written: tuple[bool, ...]
    items: list[Item] = field(default_factory=list)

    def take_in(self, fresh: tuple[Any, ...]) -> None:
        """Copy what the callable hands over to the recorded addresses.

        Raises:
            RuntimeError: it isn't what was recorded.
        """
        for kept, value in zip(self.args, fresh, strict=True):
            if isinstance(kept, torch.Tensor):
                if kept.shape != value.shape:
                    raise RuntimeError(
                        f"{self.op} was recorded with a tensor of shape {list(kept.shape)} and is "
                        f"now entered with {list(value.shape)}"
                    )
                kept.copy_(value)

    def give_back(self, fresh: tuple[Any, ...]) -> None:
        """Copy what the operator wrote to the callable's own tensors."""
        for kept, value, written in zip(self.args, fresh, self.written, strict=True):
            if written:
                value.copy_(kept)


class Region:
    """One call of a compiled callable, with the break ops that it entered.

    Args:
        pool: where hidden and the break ops' arguments are.
        call: the callable.
        inputs: static tensors; not kept alive.
    """

    def __init__(self, pool: Pool, call: ModelCall, inputs: tuple[torch.Tensor, ...]) -> None:
        self._pool, self._call = pool, call
        self._inputs = tuple(Address(tensor, "of a compiled callable") for tensor in inputs)
        self.stops: list[Stop] = []
        self.result: torch.Tensor | None = None

    def enter(self, op: str, args: tuple[Any, ...]) -> Stop:
        """Note a break op; its tensors get recorded addresses, poisoned until a replay."""
        placed = tuple(self._place(value) for value in args)
        self.stops.append(Stop(op, placed, written_arguments(op, len(args))))
        return self.stops[-1]

    def leave(self, result: torch.Tensor) -> torch.Tensor:
        """Note the end of the call and return what stands for its result."""
        placed: torch.Tensor = self._place(result)
        self.result = self._pool.alias(placed)
        return placed

    def _place(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return self._pool.allocate(value.size(), value.stride(), value.dtype)

    def run(self, first: int, last: int | None) -> None:
        """Run the callable up to a stop.

        Args:
            first: stops before this one belong to earlier graphs and have been run.
            last: where to end; None to run to the end of the call.

        Raises:
            RuntimeError: the callable takes another way than it did when it was recorded.
        """
        gate = _Gate(self.stops, first, last)
        inputs = [address.tensor() for address in self._inputs]
        # An empty context: what a graph contains can't see the live batch, only memory.
        result = Context().run(_through, gate, lambda: self._call(*inputs))
        if result is not None and self.result is not None:
            if gate.passed != len(self.stops) or result.shape != self.result.shape:
                raise RuntimeError(
                    f"a compiled callable entered {gate.passed} break ops and gave shape "
                    f"{list(result.shape)}; recorded were {len(self.stops)} and "
                    f"{list(self.result.shape)}"
                )
            self.result.copy_(result)


@dataclass
class RegionPart:
    """What of a region is in one graph."""

    region: Region
    first: int
    last: int | None = None

    def replay(self) -> None:
        """Run the callable's part."""
        self.region.run(self.first, self.last)


class _Reached(Exception):  # noqa: N818 - a signal, not an error
    """The callable got to where the graph ends."""


class _Gate:
    """Receives the break ops of a callable that is run again."""

    def __init__(self, stops: list[Stop], first: int, last: int | None) -> None:
        self._stops, self._first, self._last = stops, first, last
        self.passed = 0

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Do what was recorded instead of the operator."""
        del call
        if self.passed == len(self._stops) or self._stops[self.passed].op != op:
            raise RuntimeError(f"a compiled callable entered {op}, which wasn't recorded there")
        index, stop = self.passed, self._stops[self.passed]
        self.passed += 1
        if index >= self._first:
            stop.take_in(args)
        if index == self._last:
            raise _Reached
        if index >= self._first:
            for item in stop.items:
                item.replay()
        stop.give_back(args)


def _through(gate: _Gate, call: Callable[[], torch.Tensor]) -> torch.Tensor | None:
    nobody: Any = None
    shape = BatchShape(0, 0, 0, uniform_decode=False)
    with forward_context(ForwardContext(shape, nobody, nobody, (), (), recorder=gate)):
        try:
            return call()
        except _Reached:
            return None
