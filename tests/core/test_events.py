"""The event bus: order, containment, phases."""

from __future__ import annotations

import logging
import pickle
import random
from functools import partial

import pytest

from engine import events as module
from engine.batch import BatchShape
from engine.config import EngineConfig
from engine.events import Event, EventBus, Notice, PhaseFinished, PhaseStarted
from engine.ledger import StartupLedger
from engine.resolution import Record, Resolution
from engine.strategies import CompileReport

ALL_EVENTS = [
    kind
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]


def test_every_observer_gets_every_event_in_order() -> None:
    bus = EventBus()
    seen: list[tuple[str, Event]] = []
    for name in ("first", "second"):
        bus.subscribe(partial(lambda who, event: seen.append((who, event)), name))
    events = [Notice(str(random.random())) for _ in range(5)]
    for event in events:
        bus.emit(event)
    assert seen == [(name, event) for event in events for name in ("first", "second")]


def test_an_observer_that_raises_is_logged_and_removed_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = EventBus()
    seen: list[Event] = []

    def failing(event: Event) -> None:
        raise ValueError("observer trouble")

    bus.subscribe(failing)
    bus.subscribe(seen.append)
    with caplog.at_level(logging.ERROR):
        bus.emit(Notice("one"))
        bus.emit(Notice("two"))
    assert seen == [Notice("one"), Notice("two")]
    (record,) = caplog.records
    assert "failing" in record.getMessage()
    assert "observer trouble" in caplog.text


def test_an_observer_can_leave_also_while_an_event_is_delivered() -> None:
    bus = EventBus()
    first: list[Event] = []
    second: list[Event] = []

    def once(event: Event) -> None:
        first.append(event)
        leave()

    leave = bus.subscribe(once)
    bus.subscribe(second.append)
    bus.emit(Notice("one"))
    bus.emit(Notice("two"))
    leave()
    assert first == [Notice("one")]
    assert second == [Notice("one"), Notice("two")]


def test_two_buses_share_no_observer() -> None:
    one, other = EventBus(), EventBus()
    seen: list[Event] = []
    one.subscribe(seen.append)
    other.emit(Notice("elsewhere"))
    assert seen == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_phase_is_finished_also_when_it_fails(fails: bool) -> None:
    bus = EventBus()
    seen: list[Event] = []
    bus.subscribe(seen.append)
    total = random.randrange(1, 99)
    try:
        with bus.phase("load", total):
            if fails:
                raise RuntimeError("no file")
    except RuntimeError:
        assert fails
    started, finished = seen
    assert started == PhaseStarted("load", total)
    assert isinstance(finished, PhaseFinished)
    assert finished.phase == "load"
    assert finished.seconds >= 0


@pytest.mark.parametrize("kind", ALL_EVENTS, ids=lambda kind: kind.__name__)
def test_events_are_frozen_and_cross_process_boundaries(kind: type[Event]) -> None:
    resolution = Resolution(EngineConfig(), (Record("a", "b", "c", "d", "e"),))
    values = {
        "str": "text",
        "int": 3,
        "float": 0.5,
        "bool": True,
        "int | None": None,
        "Resolution": resolution,
        "tuple[BatchShape, ...]": (BatchShape.decode(4),),
        "CompileReport": CompileReport(pieces=3, passes={"p": 1}, seconds={"trace": 0.5}),
        "StartupLedger": StartupLedger(seconds=1.5, phases={"load": 0.5}),
    }
    fields = kind.__dataclass_fields__.values()
    event = kind(**{field.name: values[str(field.type)] for field in fields})
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(AttributeError):
        setattr(event, next(iter(fields)).name, "changed")
