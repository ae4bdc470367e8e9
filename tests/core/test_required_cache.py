"""Which pairs of a compile mode and a backend can start from kept artifacts alone."""

from __future__ import annotations

import pytest

from engine.plugin import Plugin, StartupCost
from engine.required_cache import cannot_be_kept


def mode(*, reads: bool, calls_backend: bool, cost: StartupCost) -> type[Plugin]:
    settings = frozenset({"require_cache"} if reads else ())
    members = {"NAME": "mine", "SETTINGS": settings, "USES_BACKEND": calls_backend}
    return type("Mode", (Plugin,), {**members, "STARTUP_COST": cost})


def backend(*, keeps: bool) -> type[Plugin]:
    return type("Backend", (Plugin,), {"NAME": "theirs", "CACHEABLE": keeps})


@pytest.mark.parametrize(
    ("reads", "calls_backend", "cost", "keeps", "reason"),
    [
        (True, True, StartupCost.SECONDS, True, None),
        (True, True, StartupCost.SECONDS, False, "backend theirs keeps no artifacts"),
        (False, True, StartupCost.SECONDS, True, "compile mode mine doesn't take"),
        (False, True, StartupCost.NONE, True, "compile mode mine doesn't take"),
        # It compiles by itself, without a backend and without the store.
        (False, False, StartupCost.MINUTES, True, "compile mode mine doesn't take"),
        # It keeps what it compiles by itself.
        (True, False, StartupCost.MINUTES, False, None),
        # It compiles nothing.
        (False, False, StartupCost.NONE, False, None),
    ],
)
def test_a_pair_can_be_kept_if_all_that_is_compiled_goes_through_the_store(
    reads: bool, calls_backend: bool, cost: StartupCost, keeps: bool, reason: str | None
) -> None:
    chosen = mode(reads=reads, calls_backend=calls_backend, cost=cost)
    refusal = cannot_be_kept(chosen, backend(keeps=keeps))
    assert (refusal is None) == (reason is None)
    if refusal is not None and reason is not None:
        assert refusal.reason.startswith(reason)
        assert "engine plugins show" in refusal.remedy
