"""Families: plugins of another system's registry, by their own names."""

from __future__ import annotations

import pytest

from engine.errors import BrokenPluginError, DuplicatePluginError, UnknownPluginError
from engine.names import BackendName
from engine.registry import Registry
from engine.testing.distributions import PluginMaker

_FAMILY = """
from engine.families import PluginFamily as Base
from engine.strategies import Backend

class Member(Backend):
    SUMMARY = "made by a family"
    def compile(self, graph, example_inputs, *, dynamic):
        return graph.forward

class Made(Base):
    KIND = "backends"
    @classmethod
    def names(cls):
        return ["{name}"]
    @classmethod
    def make(cls, name):
        return {make}
"""


def family(
    make_plugin: PluginMaker,
    member: str,
    *,
    make: str = 'type("M", (Member,), {"NAME": name}) if name in cls.names() else None',
    name: str = "kin",
    distribution: str | None = None,
) -> None:
    body = _FAMILY.replace("{name}", member).replace("{make}", make)
    make_plugin(name, kind="families", body=body, distribution=distribution)


def test_a_name_that_nobody_claims_is_made_by_a_family(make_plugin: PluginMaker) -> None:
    family(make_plugin, "turbo")
    registry = Registry()
    made = registry.load("backends", "Turbo")
    assert made.SUMMARY == "made by a family"
    assert registry.load("backends", "turbo") is made
    assert "turbo" in registry.family_names("backends")
    assert registry.family_names("compile_modes") == []


def test_listing_asks_no_family(make_plugin: PluginMaker) -> None:
    family(make_plugin, "turbo")
    assert "turbo" not in Registry().names("backends")


def test_a_direct_claim_wins_over_a_family(make_plugin: PluginMaker) -> None:
    family(make_plugin, "turbo")
    direct = make_plugin("turbo", kind="backends")
    assert Registry().load("backends", "turbo").__module__ == direct.module


def test_a_members_name_is_a_constant_too(make_plugin: PluginMaker) -> None:
    family(make_plugin, "turbo")
    assert BackendName.TURBO == "turbo"


def test_an_unknown_name_is_told_what_families_could_make(make_plugin: PluginMaker) -> None:
    family(make_plugin, "turbo_fusion")
    with pytest.raises(UnknownPluginError, match="Did you mean 'turbo_fusion'"):
        Registry().load("backends", "turbo_fision")


def test_two_families_with_one_name_are_an_error_and_a_distribution_selects(
    make_plugin: PluginMaker,
) -> None:
    family(make_plugin, "turbo", name="kin", distribution="first-kin")
    family(make_plugin, "turbo", name="tribe", distribution="second-kin")
    with pytest.raises(DuplicatePluginError, match=r"first-kin.*second-kin"):
        Registry().load("backends", "turbo")
    assert Registry().load("backends", "second-kin:turbo").NAME == "turbo"


def test_a_blocked_name_is_not_made(make_plugin: PluginMaker) -> None:
    family(make_plugin, "turbo")
    for blocked in ("turbo", "backends/turbo", "kin"):
        with pytest.raises(UnknownPluginError):
            Registry(blocked=[blocked]).load("backends", "turbo")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("Base", "must return a subclass of engine.strategies.Backend"),
        ('type("M", (Member,), {"NAME": "other"})', "calls itself 'other'"),
    ],
)
def test_what_a_family_makes_is_checked_like_a_plugin(
    make_plugin: PluginMaker, make: str, reason: str
) -> None:
    family(make_plugin, "turbo", make=make)
    with pytest.raises(BrokenPluginError, match=reason):
        Registry().load("backends", "turbo")


def test_a_broken_family_disturbs_nobody(make_plugin: PluginMaker) -> None:
    make_plugin("kin", kind="families", preamble="import a_module_that_is_missing", body="Made = 1")
    with pytest.raises(UnknownPluginError):
        Registry().load("backends", "turbo")
    (status,) = [row for row in Registry().status("families") if row.claim.name == "kin"]
    assert "a_module_that_is_missing" in status.error
