"""What came of a matrix: a table, two charts, and the combination to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.settings import Settings
from engine_tools.bench.figures import Figure
from engine_tools.bench.fresh import Outcome, pack_settings
from engine_tools.bench.recommendation import recommend
from engine_tools.bench.results import Bar, Chart, Table, bar, mebibytes, number
from engine_tools.verify.matrix import Combination

Verdict = Literal["equal", "near-ties", "wrong", "unknown"]


@dataclass(frozen=True)
class Tokens:
    """How a cell's tokens compare with the reference's.

    Attributes:
        verdict: `near-ties` when tokens differ only where the reference could hardly decide.
        compared: tokens.
        differing: the first of each answer that differs.
    """

    verdict: Verdict
    compared: int = 0
    differing: int = 0

    def __str__(self) -> str:
        return f"{self.verdict}, {self.differing} differ" if self.differing else self.verdict


@dataclass(frozen=True)
class Cell:
    """One combination; figures only when the outcome is `done`.

    Attributes:
        combination: of the three modes.
        outcome: what became of its process.
        reason: why there are no figures, or what is wrong.
        tokens: compared with the reference's.
        ready_s: seconds of the start, imports included.
        phases: of the start, seconds.
        decode: ms for each decode step.
        ttft: ms to the first token.
        memory: peaks in bytes, by place.
        graph_bytes: that recorded graphs take on the device.
    """

    combination: Combination
    outcome: Outcome
    reason: str = ""
    tokens: Tokens = Tokens("unknown")
    ready_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    decode: Figure | None = None
    ttft: Figure | None = None
    memory: dict[str, int] = field(default_factory=dict)
    graph_bytes: int = 0

    @property
    def right(self) -> bool:
        """Whether it answers as the reference does."""
        return self.outcome == "done" and self.tokens.verdict in ("equal", "near-ties")

    @property
    def summary(self) -> str:
        """What came of it, in one line."""
        if self.decode is None:
            return f"{self.outcome}: {self.reason}"
        return f"{number(self.decode.median)} ms a step, tokens {self.tokens}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            **self.combination._asdict(),
            "outcome": self.outcome,
            "reason": self.reason,
            "tokens": {
                "verdict": self.tokens.verdict,
                "compared": self.tokens.compared,
                "differing": self.tokens.differing,
            },
            "ready_s": self.ready_s if self.decode else None,
            "phases_s": self.phases,
            "decode": self.decode.to_dict() if self.decode else None,
            "ttft": self.ttft.to_dict() if self.ttft else None,
            "peak_memory_bytes": self.memory,
            "graph_bytes": self.graph_bytes,
        }


_COLUMNS = (
    *("compile mode", "graph mode", "backend", "tokens", "start s", "decode ms", "min", "max"),
    *("TTFT ms", "peak memory", "graphs", ""),
)


@dataclass(frozen=True)
class MatrixResult:
    """All cells, and what they depend on.

    Attributes:
        cells: the reference first.
        reference: the combination that the tokens are compared with.
        settings: that the user gave.
        in_force: the reference's settings as they were resolved.
        machine: versions and hardware.
        workload: of each cell.
        streamed_bytes: of the weights that a decode step reads; 0 if unknown.
        bandwidth: bytes per second of a copy on the device; None if unknown.
    """

    cells: tuple[Cell, ...]
    reference: Combination
    settings: Settings
    in_force: dict[str, Any]
    machine: dict[str, str]
    workload: dict[str, Any]
    streamed_bytes: int = 0
    bandwidth: float | None = None
    kind: str = "matrix"

    @property
    def floor_ms(self) -> float | None:
        """The least that a decode step can take, in ms."""
        known = self.bandwidth and self.streamed_bytes
        return 1e3 * self.streamed_bytes / self.bandwidth if known and self.bandwidth else None

    @property
    def interrupted(self) -> bool:
        """Whether it was ended before every cell had run."""
        return any(cell.outcome == "interrupted" for cell in self.cells)

    @property
    def notes(self) -> Sequence[str]:
        """The floor and the recommendation."""
        found = ["tokens are compared with " + " / ".join(self.reference)]
        if self.bandwidth and self.floor_ms is not None:
            found.append(
                f"floor of a decode step: {self.streamed_bytes / 1e6:,.1f} MB of weights / "
                f"{self.bandwidth / 1e9:,.1f} GB/s of copying on this device = "
                f"{self.floor_ms:.3f} ms"
            )
        return (*found, *recommend(self.cells, self.reference, self.settings))

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what the figures depend on."""
        return {
            "workload": self.workload,
            "settings given": pack_settings(self.settings)["config"],
            "settings of the reference": self.in_force,
            "machine": self.machine,
        }

    def tables(self) -> list[Table]:
        """Return one row for each cell."""
        return [Table("combinations", _COLUMNS, tuple(map(_row, self.cells)))]

    def charts(self) -> list[Chart]:
        """Return decode steps and starts."""
        done = [cell for cell in self.cells if cell.decode and cell.ttft]
        decode = [_named(cell, bar(cell.decode)) for cell in done if cell.decode]
        ttft = [_named(cell, bar(cell.ttft)) for cell in done if cell.ttft]
        starts = [_named(c, Bar("", c.ready_s, c.ready_s, c.ready_s)) for c in done]
        return [
            Chart("decode step, ms", "ms", tuple(decode), self.floor_ms),
            Chart("time to first token, ms", "ms", tuple(ttft)),
            Chart("start, s", "s", tuple(starts)),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "benchmark": self.kind,
            **self.facts(),
            "reference": list(self.reference),
            "decode_floor_ms": self.floor_ms,
            "copy_bandwidth_bytes_per_s": self.bandwidth,
            "cells": [cell.to_dict() for cell in self.cells],
            "notes": list(self.notes),
        }


def _row(cell: Cell) -> tuple[str, ...]:
    if cell.decode is None or cell.ttft is None:
        return (*cell.combination, cell.outcome, *["-"] * 7, _first_line(cell.reason))
    return (
        *cell.combination,
        str(cell.tokens),
        f"{cell.ready_s:.1f}",
        number(cell.decode.median),
        number(cell.decode.minimum),
        number(cell.decode.maximum),
        number(cell.ttft.median),
        ", ".join(f"{place} {mebibytes(size)}" for place, size in cell.memory.items()),
        mebibytes(cell.graph_bytes) if cell.graph_bytes else "-",
        _first_line(cell.reason),
    )


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _named(cell: Cell, drawn: Bar) -> Bar:
    note = "" if cell.right else cell.tokens.verdict
    return Bar(" / ".join(cell.combination), drawn.value, drawn.low, drawn.high, note)
