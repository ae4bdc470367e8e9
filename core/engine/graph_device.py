"""What records and replays device work, as graph strategies see it.

A strategy never names `torch.cuda`: it records through this interface, so that the same code
runs on CUDA, on another vendor's graphs, and on a simulated device in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class RecordedGraph(Protocol):
    """One recorded graph."""

    def replay(self) -> None:
        """Run the recorded work again on what the static buffers hold now."""
        ...


class GraphDevice(Protocol):
    """Records work into graphs that share one memory pool."""

    name: str

    def begin(self) -> None:
        """Start recording what the current thread launches."""
        ...

    def end(self) -> RecordedGraph:
        """Stop recording and return the graph.

        Raises:
            RuntimeError: the recorded work is illegal in a graph; the device stays usable.
        """
        ...

    def abort(self) -> None:
        """Stop recording after a failure and leave stream and pool usable."""
        ...

    def memory(self) -> int:
        """Return the bytes that the shared pool holds."""
        ...


class Recorder(Protocol):
    """Receives the break ops that are entered while a recording is in force."""

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """End the current segment, run the operator, and begin the next segment."""
        ...
