"""Every installed combination of the three axes, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine import EngineError, Registry, Settings
from engine_tools.changed_settings import with_compilation
from engine_tools.verify.report import Report
from engine_tools.verify.verification import Verification


class Combination(NamedTuple):
    """One value of each axis."""

    compilation_mode: str
    cudagraph_mode: str
    backend: str

    def within(self, settings: Settings) -> Settings:
        """Return the settings with this combination asked for."""
        return with_compilation(
            settings,
            "matrix",
            mode=self.compilation_mode,
            cudagraph_mode=self.cudagraph_mode,
            backend=self.backend,
        )


@dataclass(frozen=True)
class Cell:
    """What came of one combination: a report, or why it didn't run."""

    combination: Combination
    report: Report | None
    refusal: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: a refusal is no wrong answer."""
        return self.report is None or self.report.ok


def combinations(registry: Registry, backends: Sequence[str] | None = None) -> list[Combination]:
    """Return all of them; a compile mode that calls no backend is taken with one only.

    Args:
        registry: the installed plugins.
        backends: those to take; every installed one when omitted.
    """
    chosen = registry.names("backends") if backends is None else backends

    def used(mode: str) -> Sequence[str]:
        return chosen if registry.load("compile_modes", mode).USES_BACKEND else ["eager"]

    return [
        Combination(mode, graphs, backend)
        for mode in registry.names("compile_modes")
        for backend in used(mode)
        for graphs in registry.names("cudagraph_modes")
    ]


def check_all(verification: Verification, settings: Settings) -> Iterator[Cell]:
    """Verify every installed combination; one that is refused or can't start is told as such."""
    for combination in combinations(Registry()):
        try:
            report = verification.check(combination.within(settings))
        except EngineError as error:
            yield Cell(combination, None, str(error))
        else:
            yield Cell(combination, report)
