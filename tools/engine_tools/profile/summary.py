"""What a trace adds up to: time by range, what the device did, and what it waited for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine_tools.profile.intervals import Interval, common, total, without
from engine_tools.profile.trace import Span, Trace

STEP = "step "
"""Begins the name of the range around a whole step; the phase follows."""
_TOP = 10
_RUNS = frozenset({"forward", "replay"})
_WAITS = frozenset({"readback"})


@dataclass(frozen=True)
class Total:
    """Everything of one name within a phase, in microseconds.

    Attributes:
        name: of a range, an operator or a kernel.
        count: how many there were.
        us: for all of them together; of operators, without those inside them.
    """

    name: str
    count: int
    us: float


@dataclass(frozen=True)
class Share:
    """A part of the time of a phase.

    Attributes:
        name: what happened in it.
        us: microseconds in one step.
        share: of the phase, 0 to 1.
    """

    name: str
    us: float
    share: float


@dataclass(frozen=True)
class Phase:
    """The steps of one kind, in microseconds.

    Attributes:
        name: `prefill` or `decode`.
        steps: how many.
        step_us: one, on average; the time between two steps isn't in it.
        ranges: by name, the longest first; nested ones are a part of what is around them.
        shares: what the time of the steps was; they add up to 1.
        top: the kernels, or on the CPU the operators, that took longest.
    """

    name: str
    steps: int
    step_us: float
    ranges: tuple[Total, ...]
    shares: tuple[Share, ...]
    top: tuple[Total, ...]


def summarize(trace: Trace) -> tuple[Phase, ...]:
    """Add a trace up, by phase, in the order in which the phases began."""
    names = dict.fromkeys(s.name for s in trace.ranges if s.name.startswith(STEP))
    return tuple(_phase(trace, name) for name in names)


def _phase(trace: Trace, name: str) -> Phase:
    steps = [span for span in trace.ranges if span.name == name]
    windows, threads = [span.interval for span in steps], {span.thread for span in steps}
    ranges = [s for s in trace.ranges if not s.name.startswith(STEP) and _in(s, windows)]
    operators = [s for s in trace.operators if s.thread in threads and _in(s, windows)]
    device = [s for s in trace.device if _overlaps(s, windows)]
    if trace.device:
        shares = _device_shares(windows, ranges, device)
        top = _totals((s.name, _length(s.interval)) for s in device)
    else:
        shares = _host_shares(windows, ranges, operators)
        top = _totals(own_times(operators))
    span = total(windows)
    return Phase(
        name.removeprefix(STEP),
        len(steps),
        span / len(steps),
        _totals((s.name, _length(s.interval)) for s in ranges),
        tuple(Share(what, us / len(steps), us / span if span else 0.0) for what, us in shares),
        top[:_TOP],
    )


def _in(span: Span, windows: Sequence[Interval]) -> bool:
    return any(w.start <= span.interval.start and span.interval.end <= w.end for w in windows)


def _overlaps(span: Span, windows: Sequence[Interval]) -> bool:
    return any(w.start < span.interval.end and span.interval.start < w.end for w in windows)


def _length(interval: Interval) -> float:
    return interval.end - interval.start


def _named(ranges: Iterable[Span], names: frozenset[str]) -> list[Interval]:
    return [span.interval for span in ranges if span.name in names]


def _device_shares(
    windows: Sequence[Interval], ranges: Sequence[Span], device: Sequence[Span]
) -> list[tuple[str, float]]:
    """Split steps by what the device did.

    While it is idle, the host either launches (or waits for the device, whose kernels then are what
    leaves gaps), or does something that the device has to wait for.
    """
    busy = common(windows, [span.interval for span in device])
    idle = without(windows, busy)
    gaps = common(idle, _named(ranges, _RUNS | _WAITS))
    return [
        ("device", total(busy)),
        ("launch gaps", total(gaps)),
        ("host", total(without(idle, gaps))),
    ]


def _host_shares(
    windows: Sequence[Interval], ranges: Sequence[Span], operators: Sequence[Span]
) -> list[tuple[str, float]]:
    """Split steps where the host computes; what a compiler made leaves no event of its own."""
    computing = common(windows, [span.interval for span in operators])
    rest = without(_named(ranges, _RUNS), computing)
    return [
        ("operators", total(computing)),
        ("forward pass outside of operators", total(rest)),
        ("host", total(without(windows, [*computing, *rest]))),
    ]


def _totals(durations: Iterable[tuple[str, float]]) -> tuple[Total, ...]:
    found: dict[str, tuple[int, float]] = {}
    for name, us in durations:
        count, before = found.get(name, (0, 0.0))
        found[name] = count + 1, before + us
    totals = [Total(name, count, us) for name, (count, us) in found.items()]
    return tuple(sorted(totals, key=lambda each: (-each.us, each.name)))


def own_times(spans: Iterable[Span]) -> list[tuple[str, float]]:
    """Return the time of each span without the spans inside it, by name; one thread at a time."""
    own: list[tuple[str, float]] = []
    open_spans: list[tuple[int, Span]] = []
    for span in sorted(spans, key=lambda s: (s.thread, s.interval.start, -s.interval.end)):
        while open_spans and not _holds(open_spans[-1][1], span):
            open_spans.pop()
        length = _length(span.interval)
        if open_spans:
            index = open_spans[-1][0]
            own[index] = own[index][0], own[index][1] - length
        open_spans.append((len(own), span))
        own.append((span.name, length))
    return own


def _holds(outer: Span, inner: Span) -> bool:
    return outer.thread == inner.thread and inner.interval.end <= outer.interval.end
