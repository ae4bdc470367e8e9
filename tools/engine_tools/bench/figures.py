"""A measured figure: its percentiles, and how it spreads over repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Figure:
    """One thing that was measured, several times.

    Attributes:
        name: what it is.
        unit: of every number here.
        rounds: one number for each repeat; the median of a repeat that gave many.
        percentiles: of all samples of all repeats, by name (`p50`); empty where a repeat gives one.
        floor: the least that this machine allows; None where it isn't known.
    """

    name: str
    unit: str
    rounds: tuple[float, ...]
    percentiles: dict[str, float] = field(default_factory=dict)
    floor: float | None = None

    @property
    def median(self) -> float:
        """The median of the repeats."""
        return float(np.median(self.rounds))

    @property
    def minimum(self) -> float:
        """The smallest of the repeats."""
        return min(self.rounds)

    @property
    def maximum(self) -> float:
        """The largest of the repeats."""
        return max(self.rounds)

    def to_dict(self) -> dict[str, object]:
        """Return everything, for JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            **self.percentiles,
            "median": self.median,
            "min": self.minimum,
            "max": self.maximum,
            "rounds": list(self.rounds),
            "floor": self.floor,
        }


def distribution(
    name: str, unit: str, rounds: Sequence[Sequence[float]], *, floor: float | None = None
) -> Figure | None:
    """Return the figure of repeats that gave many samples each; None when none gave any."""
    rounds = [samples for samples in rounds if len(samples)]
    if not rounds:
        return None
    everything = [sample for samples in rounds for sample in samples]
    medians = tuple(float(np.median(samples)) for samples in rounds)
    return Figure(name, unit, medians, percentiles(everything), floor)


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """Return p50, p90 and p99, interpolated linearly between samples as numpy does."""
    values = np.percentile(samples, PERCENTILES)
    return {f"p{rank}": float(value) for rank, value in zip(PERCENTILES, values, strict=True)}
