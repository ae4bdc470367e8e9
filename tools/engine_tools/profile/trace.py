"""What of a Chrome trace is about steps: our ranges, operators, and what ran on the device."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.ranges import PREFIX
from engine_tools.profile.intervals import Interval

_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_OPERATOR = "cpu_op"
_RANGE = "user_annotation"


@dataclass(frozen=True)
class Span:
    """One event of a trace.

    Attributes:
        name: of the range, without our prefix; of the operator, or of the kernel.
        interval: when, in microseconds.
        thread: of the host; empty for what ran on the device.
    """

    name: str
    interval: Interval
    thread: str = ""


@dataclass(frozen=True)
class Trace:
    """The events of a trace that count here.

    Attributes:
        ranges: ours, steps included.
        operators: of PyTorch, nested ones too.
        device: kernels and copies.
    """

    ranges: tuple[Span, ...]
    operators: tuple[Span, ...]
    device: tuple[Span, ...]


def read_trace(path: Path) -> Trace:
    """Read a trace that PyTorch's profiler wrote, compressed or not."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    return parse_events(json.loads(data)["traceEvents"])


def parse_events(events: Iterable[Mapping[str, Any]]) -> Trace:
    """Sort the events of a trace; those of other kinds are left out."""
    ranges, operators, device = list[Span](), list[Span](), list[Span]()
    for event in events:
        if event.get("ph") != "X":
            continue
        start, category, name = float(event["ts"]), event.get("cat"), str(event["name"])
        interval = Interval(start, start + float(event.get("dur", 0)))
        thread = f"{event.get('pid')}/{event.get('tid')}"
        if category in _DEVICE:
            device.append(Span(name, interval))
        elif category == _OPERATOR:
            operators.append(Span(name, interval, thread))
        elif category == _RANGE and name.startswith(PREFIX):
            ranges.append(Span(name.removeprefix(PREFIX), interval, thread))
    return Trace(tuple(ranges), tuple(operators), tuple(device))
