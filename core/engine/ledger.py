"""Where the time of a start went: what is shown when the engine is ready, and kept for metrics."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_SHOWN = 8
"""Compiled units that a log lists one by one; the slowest ones."""


class LedgerUnit(msgspec.Struct, frozen=True):
    """One callable that was made before the engine was ready.

    Attributes:
        name: of the graph and of its range of tokens, as the compile mode calls them.
        seconds: to compile or to load it.
        cached: it came from the artifact store.
        num_bytes: of its artifact; 0 where none is kept.
    """

    name: str
    seconds: float
    cached: bool = False
    num_bytes: int = 0


class LedgerCapture(msgspec.Struct, frozen=True):
    """The graphs of one kind that were recorded before the engine was ready.

    Attributes:
        kind: the graph strategy's label.
        sizes: tokens of each graph, in the order of recording.
        seconds: for all of them.
        num_bytes: by which the graphs' memory grew.
        dropped: how many more were given up.
    """

    kind: str
    sizes: tuple[int, ...] = ()
    seconds: float = 0.0
    num_bytes: int = 0
    dropped: int = 0


class StartupLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a start, by phase; what was compiled and what was loaded.

    Attributes:
        seconds: from the beginning until the engine was ready.
        phases: seconds by phase (`plugins`, `load`, `compile`, `capture`, …), in order.
        compile_mode: the mode that made the callable.
        compile_phases: seconds within `compile` (`trace`, `split`, `passes`, `compile`, `load`,
            `warm-up`, …), in order; each mode has its own.
        pieces: graphs that a step runs through the backend.
        unique_pieces: how many of them differ.
        ranges: upper ends of the token ranges that were compiled separately.
        cache_hits, cache_misses: callables loaded from the artifact store, and compiled.
        unkept: units that the store can't keep, with the reason; compiled at each start.
        passes: how many times each FX pass fired.
        units: one entry per callable, in the order in which they were made.
        captures: one entry per kind of recorded graph.
    """

    seconds: float = 0.0
    phases: dict[str, float] = {}
    compile_mode: str = ""
    compile_phases: dict[str, float] = {}
    pieces: int = 0
    unique_pieces: int = 0
    ranges: tuple[int, ...] = ()
    cache_hits: int = 0
    cache_misses: int = 0
    unkept: dict[str, str] = {}
    passes: dict[str, int] = {}
    units: tuple[LedgerUnit, ...] = ()
    captures: tuple[LedgerCapture, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the ledger as a few lines of text."""
        other = max(0.0, self.seconds - sum(self.phases.values()))
        phases = {**self.phases, "other": other}
        yield f"started in {self.seconds:.1f} s: {_seconds(phases)}"
        if self.compile_phases:
            yield f"compile ({self.compile_mode}): {_seconds(self.compile_phases)}"
        for each in self.captures:
            given_up = f", {each.dropped} given up" if each.dropped else ""
            size = f"{each.num_bytes / 2**20:.0f} MiB"
            yield (
                f"captured {len(each.sizes)} {each.kind} graphs in {each.seconds:.1f} s, "
                f"{size}{given_up}"
            )
        if not self.units:
            return
        yield (
            f"{self.pieces} graphs in a step, {self.unique_pieces} different; "
            f"{self.cache_misses} compiled, {self.cache_hits} from the cache"
        )
        slowest = sorted(self.units, key=lambda unit: -unit.seconds)
        width = max(len(unit.name) for unit in slowest[:_SHOWN])
        for unit in slowest[:_SHOWN]:
            source = "from the cache" if unit.cached else "compiled"
            yield f"  {unit.name:{width}} {unit.seconds:7.2f} s  {source}"
        if rest := slowest[_SHOWN:]:
            yield f"  and {len(rest)} more, {sum(unit.seconds for unit in rest):.2f} s"


def _seconds(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
