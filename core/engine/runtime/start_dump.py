"""What the core itself writes of a start that is dumped: settings, capture plan, ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import msgspec

from engine.dump import GraphDump
from engine.events import CapturePlanned, EngineReady, Event, GraphCaptured, SettingsResolved
from engine.records import Resolution


class StartDump:
    """Follows the events of a start; the strategies write beside it.

    Args:
        dump: where it writes.
    """

    def __init__(self, dump: GraphDump) -> None:
        self._dump = dump
        self._planned: CapturePlanned | None = None
        self._captured: list[GraphCaptured] = []

    def observe(self, event: Event) -> None:
        """Receive an event."""
        match event:
            case SettingsResolved(resolution):
                self.resolved(resolution)
            case CapturePlanned():
                self._planned = event
                self._write_captures()
            case GraphCaptured() if self._planned is not None:
                self._captured.append(event)
            case EngineReady(ledger):
                self._write_captures()
                about = "where the time of the start went"
                self._dump.text("ledger.txt", "\n".join(ledger.lines()) + "\n", about)
                content = json.dumps(msgspec.to_builtins(ledger), indent=1)
                self._dump.text("ledger.json", content + "\n", f"{about}, as data")

    def resolved(self, resolution: Resolution) -> None:
        """Write the settings in force; again when loading has decided the rest."""
        about = "what each setting became, and why"
        lines = [
            f"{r.setting} = {r.effective}  ({r.decided_by}: {r.reason}"
            f"{f'; {r.remedy}' if r.remedy else ''})\n"
            for r in resolution.records
        ]
        self._dump.text("settings.txt", "".join(lines), about)
        content = json.dumps(resolution.to_dicts(), indent=1)
        self._dump.text("settings.json", content + "\n", f"{about}, as data")

    def _write_captures(self) -> None:
        if self._planned is None:
            self._dump.missing("capture.txt", "the graph mode records nothing")
            return
        about = "the shapes that are recorded, their seconds and bytes"
        self._dump.text("capture.txt", "".join(self._capture_lines(self._planned)), about)
        content = {
            "mode": self._planned.mode,
            "lazy": self._planned.lazy,
            "planned": [asdict(shape) for shape in self._planned.shapes],
            "captured": [asdict(each) for each in self._captured],
        }
        self._dump.text("capture.json", json.dumps(content, indent=1) + "\n", f"{about}, as data")

    def _capture_lines(self, plan: CapturePlanned) -> Iterator[str]:
        when = "when a batch first has them" if plan.lazy else "in this order"
        yield f"{plan.mode}: {len(plan.shapes)} shapes are recorded {when}\n"
        for shape in plan.shapes:
            kind = "decode" if shape.uniform_decode else "any batch"
            yield f"  {kind:9} {shape.num_tokens:6} tokens, up to {shape.num_reqs} sequences\n"
        if self._captured:
            seconds = sum(each.seconds for each in self._captured)
            taken = sum(each.num_bytes for each in self._captured) / 2**20
            yield f"\nrecorded: {seconds:.2f} s, {taken:.1f} MiB\n"
        for each in self._captured:
            result = f"given up: {each.dropped}" if each.dropped else f"{each.num_bytes} bytes"
            yield f"  {each.kind:9} {each.num_tokens:6} tokens {each.seconds:8.3f} s  {result}\n"
