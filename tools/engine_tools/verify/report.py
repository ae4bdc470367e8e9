"""What a verification found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from engine.plugin import Numerics
from engine_tools.verify.comparison import Comparison, Divergence

_SHOWN = 5


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    Attributes:
        name: what must be true.
        ok: whether it is.
        detail: the figure, or what is wrong.
    """

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Report:
    """The verdict on one combination.

    Attributes:
        compilation_mode, cudagraph_mode, backend: in force.
        passes: those that changed the graph.
        numerics: the weakest class that a plugin in force declares.
        dtype: of weights and activations.
        comparison: of all answers.
        checks: one for each question.
        place: where the first wrong answer comes from; empty if none is wrong.
        steps: how many steps ran, by graph mode, kind, padded size and reason.
        unreached: recorded shapes that no step of the workload replayed.
    """

    compilation_mode: str
    cudagraph_mode: str
    backend: str
    passes: tuple[str, ...]
    numerics: Numerics
    dtype: str
    comparison: Comparison
    checks: tuple[Check, ...]
    place: str
    steps: dict[str, int]
    unreached: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)

    @property
    def first(self) -> Divergence | None:
        """The first wrong answer, or None."""
        return next(iter(self.comparison.divergences), None)

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        passes = ", ".join(self.passes) or "none"
        yield f"{self.compilation_mode} / {self.cudagraph_mode} / {self.backend}, passes: {passes}"
        yield f"declared: {self.numerics.value}, {self.dtype}"
        for check in self.checks:
            yield f"{'ok   ' if check.ok else 'WRONG'}  {check.name}: {check.detail}"
        for divergence in self.comparison.divergences[:_SHOWN]:
            yield f"       {divergence}"
        if more := self.comparison.divergences[_SHOWN:]:
            yield f"       and {len(more)} more"
        if self.place:
            yield f"from   {self.place}"
        if self.unreached:
            yield f"note   recorded and not reached: {', '.join(self.unreached)}"
        yield "right" if self.ok else "wrong"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**asdict(self), "ok": self.ok}
