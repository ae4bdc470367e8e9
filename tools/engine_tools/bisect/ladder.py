"""Switches one thing off after another until the answers are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine import EngineError, Registry, Settings
from engine_tools.changed_settings import with_compilation
from engine_tools.verify import Report, Verification

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """One verification on the way.

    Attributes:
        what: what was switched, in words.
        settings: the combination.
        report: what came of it; None when it was refused.
        refusal: why it was.
    """

    what: str
    settings: Settings
    report: Report | None
    refusal: str = ""

    @property
    def right(self) -> bool:
        """Whether it ran and answered rightly."""
        return self.report is not None and self.report.ok


@dataclass(frozen=True)
class Finding:
    """What a bisection came to.

    Attributes:
        culprit: the smallest part that is wrong; empty when nothing is.
        place: the layer or the recorded segment; empty where it can't be told.
        settings: the smallest combination that is still wrong.
        trials: the way there.
    """

    culprit: str
    place: str
    settings: Settings
    trials: tuple[Trial, ...]


class Bisection:
    """Walks the ladder: graphs off, passes one by one, backend `eager`, compile mode `none`.

    Args:
        verification: of the model.
        settings: the combination that may be wrong.
        tell: is told each trial.
    """

    def __init__(
        self, verification: Verification, settings: Settings, tell: Tell = lambda _line: None
    ) -> None:
        self._verification, self._settings, self._tell = verification, settings, tell
        self._trials: list[Trial] = []

    def run(self) -> Finding:
        """Return the culprit.

        Raises:
            EngineError: the combination itself is refused.
        """
        first = self._try("as given", self._settings)
        if first.report is None:
            raise EngineError(first.refusal)
        if first.right:
            return self._found("", "", self._settings)
        report, wrong = first.report, first
        if report.cudagraph_mode != "none":
            # What is on because graphs replay it stays on while they are off.
            on = [f"+{name}" for name in report.passes]
            without = self._try(
                "graph mode none", _switched(first.settings, on, cudagraph_mode="none")
            )
            if without.right:
                return self._graphs(report)
            wrong = without if without.report is not None else first
        return self._compiled(wrong, report)

    def _graphs(self, report: Report) -> Finding:
        """The graphs are at fault; a replay beside the same step says in which segment."""
        segment = next((c.detail for c in report.checks if "poisoned" in c.name and not c.ok), "")
        return self._found(f"graph mode {report.cudagraph_mode}", segment, self._settings)

    def _compiled(self, wrong: Trial, report: Report) -> Finding:
        """The fault is there without graphs: a pass, the backend or the compile mode.

        Args:
            wrong: the simplest trial so far that shows the fault.
            report: of the combination as given.
        """
        culprits: list[str] = []
        if report.passes:
            off = [f"-{name}" for name in report.passes]
            if self._try("all passes off", _switched(wrong.settings, off)).right:
                wrong, guilty = self._passes(wrong, report.passes)
                culprits = [f"pass {name}" for name in guilty]
        uses_backend = Registry().load("compile_modes", report.compilation_mode).USES_BACKEND
        if uses_backend and report.backend != "eager":
            eager = self._try(
                "backend eager", _switched(wrong.settings, backend="eager", backend_options={})
            )
            if eager.right:
                culprits.append(f"backend {report.backend}")
            elif culprits and eager.report is not None:
                wrong = eager  # the simpler one shows it as well
        if not culprits:
            culprits.append(f"compile mode {report.compilation_mode}")
        place = wrong.report.place if wrong.report is not None else ""
        return self._found(" with ".join(culprits), place, wrong.settings)

    def _passes(self, wrong: Trial, names: Sequence[str]) -> tuple[Trial, list[str]]:
        """Turn passes off one by one, for good where the fault stays without."""
        on = list(names)
        for name in names:
            if len(on) == 1:
                break
            fewer = [other for other in on if other != name]
            trial = self._try(f"pass {name} off", _only(wrong.settings, names, fewer))
            if trial.report is not None and not trial.right:
                on, wrong = fewer, trial
        return wrong, on

    def _try(self, what: str, settings: Settings) -> Trial:
        try:
            trial = Trial(what, settings, self._verification.check(settings))
        except EngineError as error:
            trial = Trial(what, settings, None, str(error))
        self._trials.append(trial)
        verdict = "right" if trial.right else f"refused: {trial.refusal}"
        self._tell(f"{what}: {verdict if trial.right or trial.report is None else 'wrong'}")
        return trial

    def _found(self, culprit: str, place: str, settings: Settings) -> Finding:
        return Finding(culprit, place, settings, tuple(self._trials))


def _only(settings: Settings, names: Sequence[str], on: Sequence[str]) -> Settings:
    return _switched(settings, [f"{'+' if name in on else '-'}{name}" for name in names])


def _switched(settings: Settings, passes: Sequence[str] = (), **values: Any) -> Settings:
    """Return the settings with passes switched and other fields of the compilation changed."""
    if passes:
        named = {switch[1:] for switch in passes}
        before = settings.config.compilation_config.passes
        values["passes"] = (*(one for one in before if one[1:] not in named), *passes)
    return with_compilation(settings, "bisect", **values)
