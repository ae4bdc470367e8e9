"""Plugins of any kind that say something wrong about themselves, found by name."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from engine.facts import Facts
from engine.hookspecs import API_VERSION
from engine.plugin import Refusal
from engine.strategies import CompiledModel, CompileJob, CompileReport, CompileStrategy
from engine.testing import CompileStrategyConformance, PluginConformance, run_checks
from engine.testing.conformance import declared
from engine.testing.distributions import PluginMaker


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    depth: int = 3
    """How deep."""


class Plain(CompileStrategy):
    """Keeps the contract."""

    NAME = "plain"
    SUMMARY = "run the module"
    USES_BACKEND = False
    OPTIONS = Options

    def compile(self, job: CompileJob) -> CompiledModel:
        return CompiledModel(job.model, CompileReport(), watchable=True)


class Shouts(Plain):
    NAME = "PLAIN-MODE"


class TalksALot(Plain):
    SUMMARY = "one line\nand another"


class ReadsNoSuchSetting(Plain):
    SETTINGS = frozenset({"compile_size"})


class TakesAnyOption(Plain):
    class OPTIONS(BaseModel):
        depth: int = Field(default=3, description="How deep.")


class ExplainsNoOption(Plain):
    class OPTIONS(BaseModel):
        model_config = ConfigDict(extra="forbid")
        depth: int = 3


class SameFingerprint(Plain):
    def fingerprint(self) -> str:
        return self.NAME


class RunsEverywhere(Plain):
    DEVICES = frozenset({"cpu"})

    @classmethod
    def refuse(cls, facts: Facts) -> Refusal | None:
        return None


class KnowsNoRemedy(Plain):
    @classmethod
    def refuse(cls, facts: Facts) -> Refusal | None:
        return Refusal("not today", "")


class StepsAsideInSilence(Plain):
    """Another mode takes its place, and nobody learns why."""

    @classmethod
    def refuse(cls, facts: Facts) -> Refusal | None:
        return Refusal("", "wait")


class SharesAList(Plain):
    seen: ClassVar[list[Any]] = []

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self.events = self.seen


WRONG = {
    Shouts: "it_describes_itself",
    TalksALot: "it_describes_itself",
    ReadsNoSuchSetting: "the_settings_that_it_reads_exist",
    TakesAnyOption: "its_options_are_typed_and_described",
    ExplainsNoOption: "its_options_are_typed_and_described",
    SameFingerprint: "its_fingerprint_follows_its_options",
    RunsEverywhere: "a_device_that_it_cant_use_is_refused_with_a_remedy",
    KnowsNoRemedy: "a_device_that_it_cant_use_is_refused_with_a_remedy",
    StepsAsideInSilence: "an_explicit_choice_is_honoured_or_refused",
    SharesAList: "two_instances_share_nothing_that_changes",
}


@pytest.mark.parametrize(("plugin", "check"), WRONG.items())
def test_the_kit_finds(catches: Any, plugin: type, check: str) -> None:
    assert "the contract asks" in catches(CompileStrategyConformance, plugin, check)


@pytest.mark.parametrize("check", sorted(set(WRONG.values())))
def test_what_keeps_the_contract_passes(passes: Any, check: str) -> None:
    passes(CompileStrategyConformance, Plain, check)


@pytest.mark.parametrize(
    ("wrong", "check", "said"),
    [
        ({"preamble": "import torch"}, "its_module_is_light", "loads torch"),
        (
            {"api_version": API_VERSION},
            "it_is_found_under_its_name_and_written_for_this_contract",
            f"ENGINE_API_VERSION is {API_VERSION}; the current version is {API_VERSION + 1}",
        ),
        ({}, "", ""),
    ],
)
def test_what_is_installed_is_checked_too(
    make_plugin: PluginMaker,
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, Any],
    check: str,
    said: str,
) -> None:
    if "api_version" in wrong:
        monkeypatch.setattr(declared, "API_VERSION", API_VERSION + 1)
    made = make_plugin("fast", **wrong)
    suite = type("Tested", (CompileStrategyConformance,), {"strategy": made.name})
    names = ["its_module_is_light", "it_is_found_under_its_name_and_written_for_this_contract"]
    for outcome in run_checks(suite, names=names):
        assert outcome.state == ("failed" if outcome.name == check else "passed"), outcome.detail
        assert said in outcome.detail or outcome.name != check


def test_every_check_of_any_plugin_has_something_to_find() -> None:
    installed = {"its_module_is_light", "it_is_found_under_its_name_and_written_for_this_contract"}
    own = {name.removeprefix("test_") for name in PluginConformance.checks()}
    assert own == set(WRONG.values()) | installed
