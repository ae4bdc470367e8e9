"""What records and replays device work, as graph strategies see it.

A strategy never names `torch.cuda`: it records through this interface, so that the same code
runs on CUDA, on another vendor's graphs, and on a simulated device in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from engine.strategies import ModelCall


class RecordedGraph(Protocol):
    """One recorded graph."""

    def replay(self) -> None:
        """Run the recorded work again on what the static buffers hold now."""
        ...


class GraphDevice(Protocol):
    """Records work into graphs that share one memory pool."""

    name: str

    def session(self) -> AbstractContextManager[None]:
        """Return a context in which recordings are made (a side stream, on CUDA).

        Leaving it also leaves stream and pool usable when a recording failed inside.
        """
        ...

    def begin(self) -> None:
        """Start recording what this thread launches; call it inside a session."""
        ...

    def end(self) -> RecordedGraph | None:
        """Stop recording and return the graph, or None when nothing was recorded.

        Raises:
            RuntimeError: the recorded work is illegal in a graph.
        """
        ...

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor over the same memory that doesn't keep it from being reused.

        What a replay needs between its segments must not pin the pool for all other shapes.
        """
        ...

    def adopt(self, call: ModelCall, *, compiled: bool) -> ModelCall:
        """Return the form of a model's callable that this device can record (on CUDA, itself).

        Args:
            call: what a compile strategy made.
            compiled: whether a backend had a part in it, so that not all it does is visible as
                operators.
        """
        ...

    def memory(self) -> int:
        """Return the bytes that the shared pool holds."""
        ...


class Recorder(Protocol):
    """Receives the break ops that are entered while a recording is in force."""

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """End the current segment, run the operator, and begin the next segment."""
        ...
