"""The one piece of global state: set for one pass, never nested, always reset."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from engine.batch import BatchShape
from engine.forward_context import ForwardContext, active, current, forward_context


def make_context() -> ForwardContext:
    attention = cast("Any", object())  # never called here
    return ForwardContext(BatchShape.decode(1), attention, None, specs=(), caches=())


def test_the_context_holds_inside_and_ends_outside() -> None:
    context = make_context()
    assert active() is None
    with forward_context(context) as entered:
        assert entered is context
        assert current() is context
        assert active() is context
    assert active() is None


def test_reading_it_outside_a_pass_is_an_error_that_says_why() -> None:
    with pytest.raises(RuntimeError, match="must be run by the engine's runner"):
        current()


def test_it_is_reset_when_the_pass_fails() -> None:
    with pytest.raises(ValueError, match="in the model"), forward_context(make_context()):
        raise ValueError("in the model")
    assert active() is None


def test_a_second_pass_inside_the_first_is_refused_and_the_first_goes_on() -> None:
    outer = make_context()
    with forward_context(outer):
        with pytest.raises(RuntimeError, match="already running"), forward_context(make_context()):
            pytest.fail("entered")
        assert current() is outer


def test_two_threads_run_their_own_passes() -> None:
    inside: list[ForwardContext | None] = []
    with forward_context(make_context()):
        thread = threading.Thread(target=lambda: inside.append(active()))
        thread.start()
        thread.join()
    assert inside == [None]
