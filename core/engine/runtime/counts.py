"""Counts what an engine did, from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from engine.events import CompiledUnit, Event, GraphCaptured, StepRan
from engine.request import CaptureTotals


class Counts:
    """Counters of one engine; steps before it serves (warm-up) are left out.

    Attributes:
        steps: by `graph_mode|kind|padded_tokens|reason`.
        live_tokens, padded_tokens: rows that were computed for requests, and for padding.
        captures: recordings, by kind.
        late_compiles: compilations after the start.
    """

    def __init__(self) -> None:
        self._serving = False
        self.steps: Counter[str] = Counter()
        self.live_tokens = 0
        self.padded_tokens = 0
        self.captures: dict[str, CaptureTotals] = {}
        self.late_compiles = 0

    def start_serving(self) -> None:
        """Count steps from here on."""
        self._serving = True

    def observe(self, event: Event) -> None:
        """Receive an event."""
        match event:
            case StepRan(graph_mode, kind, tokens, padded, reason) if self._serving:
                self.steps[f"{graph_mode}|{kind}|{padded}|{reason}"] += 1
                self.live_tokens += tokens
                self.padded_tokens += padded - tokens
            case GraphCaptured(kind, _, seconds, num_bytes, dropped):
                before = self.captures.get(kind, CaptureTotals())
                self.captures[kind] = before.plus(seconds, num_bytes, dropped=bool(dropped))
            case CompiledUnit(late=True):
                self.late_compiles += 1
            case _:
                pass

    def lines(self) -> Iterator[str]:
        """Yield the counters as lines of text; none when no step ran."""
        if not self.steps:
            return
        total = self.live_tokens + self.padded_tokens
        share = 100 * self.padded_tokens / total if total else 0.0
        yield (
            f"{sum(self.steps.values())} steps; {share:.1f} % of {total} computed rows were padding"
        )
        for label, count in self.steps.most_common():
            mode, kind, padded, reason = label.split("|", 3)
            yield f"  {count:8d}  {mode}: {kind}, {padded} tokens{f' ({reason})' if reason else ''}"
        for kind, each in sorted(self.captures.items()):
            yield (
                f"  {each.recorded:8d}  {kind} graphs recorded, {each.dropped} given up; "
                f"{each.seconds:.2f} s, {each.num_bytes / 2**20:.0f} MiB"
            )
        if self.late_compiles:
            yield f"  {self.late_compiles:8d}  compilations after the start"
