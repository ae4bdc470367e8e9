"""Every built-in plugin goes through the kit: in its own suite, or else here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine.testing as kit
from engine.hookspecs import BASE_OF_KIND
from engine.registry import Registry

ROOT = Path(__file__).parents[2]


def without_a_suite_of_its_own() -> Iterator[Any]:
    for claim in Registry(blocked=()).claims():
        if claim.distribution != "modular-engine" or claim.kind not in BASE_OF_KIND:
            continue
        if claim.kind == "families":
            continue  # it is never instantiated: it makes plugins of another kind
        package = claim.entry_point.module.partition(".")[0]
        suite = kit.SUITES.get(claim.kind, "PluginConformance")
        tests = (ROOT / "plugins" / claim.kind / package / "tests").glob("test_*.py")
        wanted = (f"({suite})", f'strategy = "{claim.name}"')
        if not any(all(word in path.read_text() for word in wanted) for path in tests):
            yield pytest.param(suite, claim.kind, claim.name, id=f"{claim.kind}/{claim.name}")


@pytest.mark.parametrize(("suite", "kind", "name"), list(without_a_suite_of_its_own()))
def test_it_keeps_the_contract(suite: str, kind: str, name: str) -> None:
    tested = type("Tested", (getattr(kit, suite),), {"KIND": kind, "strategy": name})
    outcomes = kit.run_checks(tested)
    assert [outcome.detail for outcome in outcomes if outcome.state == "failed"] == []
    assert any(outcome.state == "passed" for outcome in outcomes)


def test_the_axes_are_checked_in_their_own_suites() -> None:
    here = {param.values[1] for param in without_a_suite_of_its_own()}
    assert here.isdisjoint({"compile_modes", "cudagraph_modes", "backends", "attention"})
