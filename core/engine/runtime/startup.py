"""What a start is made of besides its phases: the ledger, and a default mode that gives way."""

from __future__ import annotations

import logging
from time import perf_counter

from engine.config import EngineConfig
from engine.errors import CompileError
from engine.events import (
    CompiledUnit,
    Event,
    EventBus,
    GraphCaptured,
    ModelCompiled,
    Notice,
    PhaseFinished,
)
from engine.ledger import LedgerCapture, LedgerUnit, StartupLedger
from engine.ops import known_break_ops
from engine.plugin import Refusal
from engine.registry import Registry
from engine.resolution import Resolution
from engine.runtime.loading import Checkpoint, resolve_for
from engine.settings import Settings
from engine.strategies import CompileReport, CompileRequest

logger = logging.getLogger(__name__)


class LedgerBook:
    """Follows the events of a start and adds them up; its clock starts when it is made."""

    def __init__(self) -> None:
        self._begun = perf_counter()
        self._phases: dict[str, float] = {}
        self._units: list[LedgerUnit] = []
        self._captures: dict[str, LedgerCapture] = {}
        self._mode, self._report = "", CompileReport()

    def observe(self, event: Event) -> None:
        """Receive an event."""
        match event:
            case PhaseFinished(phase, seconds):
                self._phases[phase] = self._phases.get(phase, 0.0) + seconds
            case CompiledUnit(unit, seconds, cached, late=False, num_bytes=num_bytes):
                self._units.append(LedgerUnit(unit, seconds, cached, num_bytes))
            case GraphCaptured():
                self._add(event)
            case ModelCompiled(mode, report):
                self._mode, self._report = mode, report

    def _add(self, event: GraphCaptured) -> None:
        before = self._captures.get(event.kind, LedgerCapture(event.kind))
        self._captures[event.kind] = LedgerCapture(
            event.kind,
            sizes=before.sizes if event.dropped else (*before.sizes, event.num_tokens),
            seconds=before.seconds + event.seconds,
            num_bytes=before.num_bytes + event.num_bytes,
            dropped=before.dropped + bool(event.dropped),
        )

    def close(self) -> StartupLedger:
        """Return the ledger: the start-up is over."""
        report = self._report
        ledger = StartupLedger(
            seconds=perf_counter() - self._begun,
            phases=dict(self._phases),
            compile_mode=self._mode,
            compile_phases=dict(report.seconds),
            pieces=report.pieces,
            unique_pieces=report.unique_pieces,
            ranges=report.ranges,
            cache_hits=report.cache_hits,
            cache_misses=report.cache_misses,
            unkept=dict(report.unkept),
            passes=dict(report.passes),
            units=tuple(self._units),
            captures=tuple(self._captures.values()),
        )
        logger.info("start-up\n%s", "\n".join(ledger.lines()))
        return ledger


def compile_request(config: EngineConfig) -> CompileRequest:
    """Return what effective settings ask of a compile strategy.

    Call it when the model's code is imported: that registers the break ops it brings.
    """
    chosen = config.compilation_config
    exact, most = set(chosen.compile_sizes or ()), int(config.max_num_batched_tokens or 1)
    ops = known_break_ops() if chosen.splitting_ops is None else chosen.splitting_ops
    return CompileRequest(
        max_num_tokens=most,
        sizes=tuple(sorted({*exact, *(chosen.cudagraph_capture_sizes or ())})),
        exact_sizes=tuple(sorted(exact)),
        ranges=tuple(chosen.compile_ranges or (most,)),
        break_ops=frozenset(ops),
    )


class FallingBack:
    """Takes the level's next compile mode where one that nobody asked for fails.

    Args:
        settings: what was asked for.
        checkpoint: the model.
        registry: the installed plugins.
        events: where a mode that gave way is told.
    """

    def __init__(
        self, settings: Settings, checkpoint: Checkpoint, registry: Registry, events: EventBus
    ) -> None:
        self._settings, self._checkpoint, self._registry = settings, checkpoint, registry
        self._events = events
        self._excluded: dict[tuple[str, str], Refusal] = {}

    def resolve_without(self, failed: str, error: CompileError) -> Resolution:
        """Decide every setting again, a compile mode left out.

        Args:
            failed: the mode's name.
            error: what it raised.

        Raises:
            CompileError: the mode or the backend was asked for, and asking is meant.
            ResolutionError: no other mode fits.
        """
        config = self._settings.config
        asked = config.compilation_config.mode or config.compilation_config.backend
        if asked is not None and config.on_downgrade == "error":
            raise error
        self._excluded["compile_modes", failed] = Refusal(error.reason, error.remedy)
        resolution = resolve_for(
            self._settings, self._checkpoint, self._registry, excluded=self._excluded
        )
        record = resolution["compilation_config.mode"]
        message = (
            f"compilation_config.mode: {record.effective} instead of {failed}: {error.reason}; "
            f"{error.remedy}"
        )
        logger.warning(message)
        self._events.emit(Notice(message))
        return resolution
