"""Shows the start-up: a bar for each phase on a terminal, a line for each elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import IO, Any, Self

from engine.events import Event, Notice, PhaseAdvanced, PhaseFinished, PhaseStarted


class StartupProgress:
    """Receives the engine's events while it starts; a context manager.

    Args:
        stream: where to write; bars are drawn when it is a terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                console=Console(file=self._stream),
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bars down, so that others can write; may be called more than once."""
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event; those that aren't about the start-up are left alone."""
        match event:
            case PhaseStarted(phase, total) if self._bars is not None:
                self._tasks[phase] = self._bars.add_task(phase, total=total, detail="")
            case PhaseAdvanced(phase, done, total, detail) if phase in self._tasks:
                self._bars.update(self._tasks[phase], completed=done, total=total, detail=detail)
            case PhaseFinished(phase, seconds):
                self._finish(phase, seconds)
            case Notice(message):
                self._say(message)

    def _finish(self, phase: str, seconds: float) -> None:
        if self._bars is None:
            self._say(f"{phase}: {seconds:.1f} s")
        elif (task := self._tasks.pop(phase, None)) is not None:
            self._bars.update(task, total=1, completed=1, detail=f"{seconds:.1f} s")
            self._bars.stop_task(task)

    def _say(self, line: str) -> None:
        if self._bars is not None:
            self._bars.console.print(line, markup=False, highlight=False)
        else:
            self._stream.write(f"{line}\n")
            self._stream.flush()
