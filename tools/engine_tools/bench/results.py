"""What a benchmark hands over: figures, and what a reader needs to believe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine_tools.bench.figures import PERCENTILES, Figure


@dataclass(frozen=True)
class Table:
    """Text in rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Bar:
    """A median with its spread."""

    label: str
    value: float
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """Bars of one unit."""

    title: str
    unit: str
    bars: tuple[Bar, ...]
    floor: float | None = None


class Presentable(Protocol):
    """What can be printed, and written as JSON or as a report."""

    @property
    def kind(self) -> str:
        """The benchmark's name."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences that belong under the tables."""

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what the figures depend on, by title."""

    def tables(self) -> list[Table]:
        """Return the figures as text."""

    def charts(self) -> list[Chart]:
        """Return the figures as bars."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""


@dataclass(frozen=True)
class Result:
    """What came of one benchmark.

    Attributes:
        kind: its name.
        machine: versions and hardware.
        settings: of the engine or of the server that was measured.
        workload: what was run.
        figures: what was measured.
        memory: peaks in bytes, by place.
        notes: sentences that belong under the figures.
        failures: how often each reason made a request fail.
    """

    kind: str
    machine: dict[str, str]
    settings: dict[str, Any]
    workload: dict[str, Any]
    figures: tuple[Figure, ...]
    memory: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failures: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what the figures depend on."""
        return {"workload": self.workload, "settings": self.settings, "machine": self.machine}

    def tables(self) -> list[Table]:
        """Return the figures, the failures and the memory as text."""
        found = [figure_table(self.figures)]
        if self.failures:
            rows = tuple((str(count), reason) for reason, count in self.failures.items())
            found.append(Table("failed requests", ("count", "reason"), rows))
        if self.memory:
            rows = tuple((place, mebibytes(size)) for place, size in self.memory.items())
            found.append(Table("peak memory", ("where", "peak"), rows))
        return found

    def charts(self) -> list[Chart]:
        """Return one chart for each unit."""
        units = dict.fromkeys(figure.unit for figure in self.figures)
        return [
            Chart(f"{self.kind}, {unit}", unit, tuple(map(bar, figures)))
            for unit in units
            if (figures := [figure for figure in self.figures if figure.unit == unit])
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "benchmark": self.kind,
            **self.facts(),
            "figures": [figure.to_dict() for figure in self.figures],
            "failures": self.failures,
            "peak_memory_bytes": self.memory,
            "notes": list(self.notes),
        }


def bar(figure: Figure) -> Bar:
    """Return a figure as a bar, with its floor in the note."""
    note = "" if figure.floor is None else f"floor {number(figure.floor)}"
    return Bar(figure.name, figure.median, figure.minimum, figure.maximum, note)


def figure_table(figures: Sequence[Figure]) -> Table:
    """Return figures as text; columns that nobody fills are left out."""
    ranks = [f"p{rank}" for rank in PERCENTILES]
    columns: dict[str, list[str]] = {
        "figure": [figure.name for figure in figures],
        "unit": [figure.unit for figure in figures],
    }
    for rank in ranks:
        columns[rank] = [_or_dash(figure.percentiles.get(rank)) for figure in figures]
    columns["repeats"] = [str(len(figure.rounds)) for figure in figures]
    columns["median"] = [number(figure.median) for figure in figures]
    columns["min"] = [number(figure.minimum) for figure in figures]
    columns["max"] = [number(figure.maximum) for figure in figures]
    columns["floor"] = [_or_dash(figure.floor) for figure in figures]
    filled = {name: cells for name, cells in columns.items() if set(cells) - {"-"}}
    return Table("figures", tuple(filled), tuple(zip(*filled.values(), strict=True)))


def number(value: float) -> str:
    """Write a number with three digits at least, and no exponent."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


def mebibytes(size: int) -> str:
    """Write a number of bytes."""
    return f"{size / 2**20:,.0f} MiB"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)
