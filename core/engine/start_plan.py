"""What a start is going to compile and capture, and what that took the last time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from engine.batch import BatchShape
from engine.kept_starts import KeptStart, KeptStarts
from engine.records import Resolution


@dataclass(frozen=True)
class CompilePlan:
    """What will be compiled.

    Attributes:
        mode: the compile mode.
        backend: what compiles graphs; empty where the mode makes none.
        ranges: of token counts; one callable for each and for every different piece. Empty where
            the mode reads no such setting, and compiles what it meets.
        exact_sizes: token counts that are compiled for alone, besides the ranges.
        break_ops: where graphs are cut; empty where the mode doesn't cut.
        passes: FX passes that are on, in order.
    """

    mode: str
    backend: str = ""
    ranges: tuple[str, ...] = ()
    exact_sizes: tuple[int, ...] = ()
    break_ops: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the plan as text."""
        if not self.backend:
            yield f"compile ({self.mode}): nothing"
            return
        ranges = ", ".join(self.ranges) or "what the mode meets"
        yield f"compile ({self.mode}, {self.backend}): tokens {ranges}"
        if self.exact_sizes:
            yield f"  exact sizes: {', '.join(map(str, self.exact_sizes))}"
        if self.break_ops:
            yield f"  cut at: {', '.join(self.break_ops)}"
        if self.passes:
            yield f"  passes: {', '.join(self.passes)}"


@dataclass(frozen=True)
class CapturePlan:
    """What will be recorded.

    Attributes:
        mode: the graph mode.
        shapes: in the order of recording.
        lazy: each when a batch first has it, instead of before serving.
        unknown: why the shapes can't be told without a start; empty where they can.
    """

    mode: str
    shapes: tuple[BatchShape, ...] = ()
    lazy: bool = False
    unknown: str = ""

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the token counts by kind of batch: `decode`, and `any batch`; ascending."""
        kinds: dict[str, list[int]] = {}
        for shape in self.shapes:
            kind = "decode" if shape.uniform_decode else "any batch"
            kinds.setdefault(kind, []).append(shape.num_tokens)
        return {kind: tuple(sorted(sizes)) for kind, sizes in sorted(kinds.items())}

    def lines(self) -> Iterator[str]:
        """Yield the plan as text."""
        if self.unknown:
            yield f"capture ({self.mode}): told at the start only: {self.unknown}"
        elif not self.shapes:
            yield f"capture ({self.mode}): nothing"
        else:
            when = ", when a batch first has them" if self.lazy else ""
            yield f"capture ({self.mode}): {len(self.shapes)} graphs{when}"
        for kind, sizes in self.sizes().items():
            yield f"  {kind}: {', '.join(map(str, sizes))} tokens"


@dataclass(frozen=True)
class StartPlan:
    """A start before it happens; `engine.plan_start` makes it, no weight is read.

    Attributes:
        resolution: the settings in force, with reasons.
        compilation: what will be compiled.
        capture: what will be recorded.
        starts: what the last starts with these settings took here.
    """

    resolution: Resolution
    compilation: CompilePlan
    capture: CapturePlan
    starts: KeptStarts = field(default_factory=KeptStarts)

    def lines(self) -> Iterator[str]:
        """Yield plan and costs as text."""
        yield from self.compilation.lines()
        yield from self.capture.lines()
        if self.starts.compiled is None and self.starts.loaded is None:
            yield "cost: not known, no start with these settings was measured here yet"
        if (start := self.starts.compiled) is not None:
            yield from _cost("the last start that compiled", start)
        if (start := self.starts.loaded) is not None:
            yield from _cost("the last start that compiled nothing", start)

    def to_dict(self) -> dict[str, Any]:
        """Return plan and costs as plain data, for JSON; the settings are left out."""
        return {
            "compile": asdict(self.compilation),
            "capture": {**asdict(self.capture), "sizes": self.capture.sizes()},
            "starts": msgspec.to_builtins(self.starts),
        }


def _cost(what: str, start: KeptStart) -> Iterator[str]:
    ledger = start.ledger
    when = datetime.fromtimestamp(start.at).astimezone().strftime("%Y-%m-%d %H:%M")
    artifacts = sum(unit.num_bytes for unit in ledger.units)
    graphs = sum(each.num_bytes for each in ledger.captures)
    yield (
        f"cost: {what} here took {ledger.seconds:.1f} s ({when}); "
        f"artifacts {_size(artifacts)}, recorded graphs {_size(graphs)}"
    )
    yield from (f"  {line}" for line in ledger.lines())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
