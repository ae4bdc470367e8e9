"""What is asked of every plugin: that it is found, describes itself, and is honoured or refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from engine.config import CompilationConfig, EngineConfig
from engine.errors import PluginError, ResolutionError
from engine.facts import DeviceFacts, Facts, GraphSupport, ModelFacts
from engine.hookspecs import API_VERSION, BASE_OF_KIND
from engine.names import normalize
from engine.plugin import NoOptions, Numerics, StartupCost
from engine.registry import Registry
from engine.resolution import resolve
from engine.settings import Settings
from engine.settings_schema import Schema
from engine.testing.conformance.suite import Suite, ask, check

_MODEL = ModelFacts("Tiny", "float32", 128, num_layers=2, hidden_size=16, vocab_size=50)
_DEVICES = (
    DeviceFacts("cpu"),
    DeviceFacts("cpu", graph_device="simulated"),
    DeviceFacts("cuda", graph_device="cuda", capability=(9, 0)),
    DeviceFacts("a device that nobody has"),
)
_HEAVY = ("torch", "triton", "transformers")


def _is_class(suite: type[Suite]) -> str:
    return "" if isinstance(suite.strategy, str) else "a class is checked, not what is installed"


def _without_axis(suite: type[Suite]) -> str:
    return "" if getattr(suite, "SETTING", "") else "no setting selects one plugin of this kind"


class _Overlay:
    """The installed plugins, and the one that is checked whether it is installed or not."""

    def __init__(self, kind: str, plugin: Any) -> None:
        self._registry, self._kind, self._plugin = Registry(), kind, plugin

    def names(self, kind: str) -> list[str]:
        return self._registry.names(kind)

    def load(self, kind: str, name: str) -> Any:
        if kind == self._kind and normalize(name) == self._plugin.NAME:
            return self._plugin
        return self._registry.load(kind, name)


class PluginConformance(Suite):
    """Checks for a plugin of any kind that registers a class; the suites of kinds add to them."""

    SETTING: ClassVar[str] = ""
    """The setting that selects a plugin of this kind (`compilation_config.mode`)."""

    @check(quick=True, needs=_is_class)
    def test_it_is_found_under_its_name_and_written_for_this_contract(self) -> None:
        """A plugin is registered under the name that it declares, for the current API version."""
        claim = Registry().find(self.KIND, str(self.strategy))
        plugin = self.plugin()
        ask(
            normalize(plugin.NAME) == claim.name,
            f"NAME is {plugin.NAME!r}, the entry point is {claim.name!r}",
        )
        module = claim.entry_point.load()
        wanted = getattr(module, "ENGINE_API_VERSION", None)
        last = wanted[-1] if isinstance(wanted, tuple) else wanted
        ask(
            last is not None and last >= API_VERSION,
            f"{module.__name__}.ENGINE_API_VERSION is {wanted!r}; the current version is "
            f"{API_VERSION} (docs/plugin-versions.md says what changed)",
        )

    @check(needs=_is_class)
    def test_its_module_is_light(self) -> None:
        """Importing the module that registers a plugin loads no torch: listing must be quick."""
        module = Registry().find(self.KIND, str(self.strategy)).entry_point.module
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; import {module}; "
            f"print(*[m for m in {_HEAVY} if m in sys.modules])"
        )
        run = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        ask(run.returncode == 0, f"`import {module}` fails in a fresh process:\n{run.stderr}")
        loaded = run.stdout.split()
        ask(
            not loaded,
            f"`import {module}` loads {', '.join(loaded)}; import it inside the hook, or below",
        )

    @check(quick=True)
    def test_it_describes_itself(self) -> None:
        """A plugin carries a canonical name, one line of summary, a numerics class and a cost."""
        plugin = self.plugin()
        if path := BASE_OF_KIND.get(self.KIND):
            ask(
                any(f"{base.__module__}:{base.__name__}" == path for base in plugin.__mro__),
                f"{plugin.__name__} is no subclass of {path.replace(':', '.')}",
            )
        name, summary = plugin.NAME, plugin.SUMMARY
        ask(name == normalize(name) and name, f"NAME is {name!r}; write {normalize(name)!r}")
        ask(
            isinstance(summary, str) and 0 < len(summary.strip()) <= 100 and "\n" not in summary,
            f"SUMMARY is {summary!r}; it must be one line of at most 100 characters",
        )
        ask(isinstance(plugin.NUMERICS, Numerics), f"NUMERICS is {plugin.NUMERICS!r}")
        ask(
            isinstance(plugin.STARTUP_COST, StartupCost), f"STARTUP_COST is {plugin.STARTUP_COST!r}"
        )
        ask(isinstance(plugin.VERSION, str) and plugin.VERSION, f"VERSION is {plugin.VERSION!r}")
        for alias in plugin.ALIASES:
            ask(normalize(alias) != name, f"the alias {alias!r} is the name itself")
            ask(
                normalize(alias) not in Registry().names(self.KIND),
                f"the alias {alias!r} is the name of another plugin",
            )

    @check(quick=True)
    def test_the_settings_that_it_reads_exist(self) -> None:
        """`SETTINGS` lists fields of `CompilationConfig`, so that an unread one can be told."""
        unknown = self.plugin().SETTINGS - CompilationConfig.model_fields.keys()
        ask(not unknown, f"SETTINGS names {', '.join(sorted(unknown))}, which is no setting")

    @check(quick=True)
    def test_its_options_are_typed_and_described(self) -> None:
        """Every option has a type, a default and a line of help; a misspelt one is refused."""
        options = self.plugin().OPTIONS
        ask(
            isinstance(options, type) and issubclass(options, BaseModel),
            f"OPTIONS is {options!r}, no pydantic model",
        )
        for field in Schema.of(options).fields.values():
            ask(not field.info.is_required(), f"the option {field.name} has no default")
            ask(field.help.strip(), f"the option {field.name} has no help")
        if options.model_config.get("extra") == "allow":
            return
        strict = options is NoOptions or options.model_config.get("extra") == "forbid"
        ask(
            strict,
            f"{options.__name__} ignores an option that it doesn't know; give it "
            '`model_config = ConfigDict(extra="forbid")`',
        )

    @check(quick=True)
    def test_its_fingerprint_follows_its_options(self) -> None:
        """Equal options give equal fingerprints, and another option gives another one."""
        plugin = self.plugin()
        ask(
            self.make().fingerprint() == self.make().fingerprint(),
            "two instances with the same options have different fingerprints",
        )
        plain = plugin().fingerprint()
        for name, value in _other_values(plugin.OPTIONS):
            try:
                changed = plugin(plugin.OPTIONS(**{name: value}))
            except ValidationError:
                continue
            ask(
                changed.fingerprint() != plain,
                f"the fingerprint is the same with {name}={value!r}, so a cached artifact of the "
                "default would be taken for it",
            )

    @check(quick=True)
    def test_a_device_that_it_cant_use_is_refused_with_a_remedy(self) -> None:
        """`refuse` is pure, and refuses a device outside `DEVICES` with a reason and a remedy."""
        plugin = self.plugin()
        for device in _DEVICES:
            for support in GraphSupport:
                facts = Facts(device, _MODEL, graph_support=support, chosen={"attention": "x"})
                refusal = plugin.refuse(facts)
                again = plugin.refuse(facts)
                ask(refusal == again, f"it answers {refusal} and then {again} to the same facts")
                if plugin.DEVICES is not None and device.type not in plugin.DEVICES:
                    ask(refusal is not None, f"it accepts {device.type}, which isn't in DEVICES")
                if refusal is not None:
                    ask(refusal.reason.strip(), "it refuses without a reason")
                    ask(refusal.remedy.strip(), f"it refuses ({refusal.reason}) without a remedy")

    @check(quick=True, needs=_without_axis)
    def test_an_explicit_choice_is_honoured_or_refused(self) -> None:
        """A plugin that is asked for by name is in force, or resolution says why it can't be."""
        plugin = self.plugin()
        field = self.SETTING.rpartition(".")[2]
        for device in _DEVICES[:3]:
            for downgrade in ("error", "warn"):
                chosen = {field: plugin.NAME}
                inside = field != self.SETTING
                config = EngineConfig(
                    on_downgrade=downgrade,
                    **({"compilation_config": chosen} if inside else chosen),
                )
                settings = Settings(config, {self.SETTING: f"--{field}"})
                try:
                    record = resolve(settings, device, _MODEL, _Overlay(self.KIND, plugin))[
                        self.SETTING
                    ]
                except (ResolutionError, PluginError) as error:
                    ask(str(error).strip(), "it is refused without a word")
                    continue
                honoured = record.effective.partition(" (")[0] == plugin.NAME
                ask(
                    honoured or (downgrade == "warn" and record.reason and record.remedy),
                    f"on {device.type} ({device.graph_device or 'no graphs'}) {plugin.NAME} became "
                    f"{record.effective} without an error: {record}",
                )

    @check(quick=True)
    def test_two_instances_share_nothing_that_changes(self) -> None:
        """Nothing is shared between two engines of one process."""
        one, two = self.make(), self.make()
        for name, value in vars(one).items():
            other = vars(two).get(name)
            ask(
                value is not other or not isinstance(value, list | dict | set),
                f"both instances hold the same {type(value).__name__} as {name}",
            )


def _other_values(options: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yield another value for each option whose type suggests one."""
    for field in Schema.of(options).fields.values():
        value = field.default
        if isinstance(value, bool):
            yield field.name, not value
        elif isinstance(value, int | float):
            yield field.name, value + 1 if math.isfinite(value) else 1
        for choice in field.choices:
            if choice != value:
                yield field.name, choice
