"""Typed events: what happened, for logs, metrics, progress bars and third-party observers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.batch import BatchShape
    from engine.ledger import StartupLedger
    from engine.resolution import Resolution
    from engine.strategies import CompileReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Base of every event."""


@dataclass(frozen=True, slots=True)
class SettingsResolved(Event):
    """Every setting is decided, with its reason; nothing is loaded yet.

    What only loading can decide (the size of the KV cache) is not in it.
    """

    resolution: Resolution


@dataclass(frozen=True, slots=True)
class PhaseStarted(Event):
    """A start-up phase (`load`, `compile`, `capture`, …) began; `total` steps if known."""

    phase: str
    total: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseAdvanced(Event):
    """`done` steps of a phase are finished."""

    phase: str
    done: int
    total: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PhaseFinished(Event):
    """A start-up phase ended after `seconds`."""

    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CompiledUnit(Event):
    """A compile strategy made one callable; `cached` when it came from the artifact store.

    `late` marks a compilation after the engine was ready, which is a fault; `reason` is then the
    guard that failed. `num_bytes` is the artifact's size, where it is kept.
    """

    unit: str
    seconds: float
    cached: bool = False
    late: bool = False
    reason: str = ""
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelCompiled(Event):
    """A compile mode made the callable that serves every step; the report says of what."""

    mode: str
    report: CompileReport


@dataclass(frozen=True, slots=True)
class EngineReady(Event):
    """The start-up is over; the ledger says where its time went."""

    ledger: StartupLedger


@dataclass(frozen=True, slots=True)
class CapturePlanned(Event):
    """A graph strategy is about to record these shapes; `lazy` where it does so as it meets them.

    `mode` is the strategy's name. A graph mode that records nothing plans nothing.
    """

    mode: str
    shapes: tuple[BatchShape, ...]
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class GraphCaptured(Event):
    """A graph strategy recorded a shape, or gave it up (`dropped` says why)."""

    kind: str
    num_tokens: int
    seconds: float
    num_bytes: int = 0
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class StepRan(Event):
    """One step ran: how it was executed, how many rows were live and how many padded."""

    graph_mode: str
    kind: str
    num_tokens: int
    padded_tokens: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """One clear line that the user should see once (a degraded default, a slow path)."""

    message: str


Observer = Callable[[Event], None]


class EventBus:
    """Delivers events to observers, in the order they subscribed.

    An observer that raises is logged and dropped: watching must never break serving.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; the returned function removes it."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer) if observer in self._observers else None

    def emit(self, event: Event) -> None:
        """Deliver one event to every observer."""
        for observer in list(self._observers):
            try:
                observer(event)
            except Exception:
                logger.exception("observer %r failed and was removed", observer)
                self._observers.remove(observer)

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[None]:
        """Report a start-up phase; it is reported as finished also when it fails."""
        start = perf_counter()
        self.emit(PhaseStarted(name, total))
        try:
            yield
        finally:
            self.emit(PhaseFinished(name, perf_counter() - start))
