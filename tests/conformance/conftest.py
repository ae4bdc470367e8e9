"""Runs checks of the kit on a plugin that breaks them on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.testing import run_checks
from engine.testing.conformance.suite import Suite

Catches = Callable[..., str]


@pytest.fixture
def catches() -> Catches:
    """Return a function that asks that a check fails for a plugin; it returns what is said."""

    def run(suite: type[Suite], plugin: type, check: str, **attributes: Any) -> str:
        tested = type("Tested", (suite,), {"strategy": plugin, **attributes})
        (outcome,) = run_checks(tested, names=[check])
        assert outcome.state == "failed", f"{plugin.__name__} got through {check}"
        assert outcome.contract
        return outcome.detail

    return run


@pytest.fixture
def passes() -> Callable[..., None]:
    """Return a function that asks that a check passes for a plugin that keeps the contract."""

    def run(suite: type[Suite], plugin: type, check: str, **attributes: Any) -> None:
        tested = type("Tested", (suite,), {"strategy": plugin, **attributes})
        (outcome,) = run_checks(tested, names=[check])
        assert outcome.state in ("passed", "skipped"), outcome.detail

    return run
