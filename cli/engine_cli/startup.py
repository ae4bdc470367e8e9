"""Shows the start-up: the settings in force, then a bar or a line for each phase."""

from __future__ import annotations

from types import TracebackType
from typing import IO, Any, Self

from engine.events import (
    EngineReady,
    Event,
    Notice,
    PhaseAdvanced,
    PhaseFinished,
    PhaseStarted,
    SettingsResolved,
)
from engine_cli.settings_table import show_settings


class StartupProgress:
    """Receives the engine's events while it starts; a context manager.

    Args:
        stream: where to write; bars are drawn when it is a terminal.
        verbose: show every setting, not only the notable ones.
        quiet: show nothing.
    """

    def __init__(self, stream: IO[str], *, verbose: bool = False, quiet: bool = False) -> None:
        self._stream = stream
        self._verbose = verbose
        self._quiet = quiet
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
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
        if self._quiet:
            return
        match event:
            case SettingsResolved(resolution):
                show_settings(resolution, self._stream, verbose=self._verbose)
                self._draw_bars()
            case PhaseStarted(phase, total) if self._bars is not None:
                self._tasks[phase] = self._bars.add_task(phase, total=total, detail="")
            case PhaseAdvanced(phase, done, total, detail) if phase in self._tasks:
                self._bars.update(self._tasks[phase], completed=done, total=total, detail=detail)
            case PhaseFinished(phase, seconds):
                self._finish(phase, seconds)
            case EngineReady(ledger):
                for line in ledger.lines():
                    self._say(line)
            case Notice(message):
                self._say(message)

    def _draw_bars(self) -> None:
        if not self._stream.isatty():
            return
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
