"""What every plugin says about itself, whatever its kind."""

from __future__ import annotations

import json
from abc import ABC
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from engine.cache_key import settings_factors
from engine.facts import Facts


class Numerics(StrEnum):
    """How far a plugin's results may be from plain eager execution."""

    BITWISE = "bitwise"
    """The very same bits."""
    SAME_SHAPE_DETERMINISTIC = "same-shape-deterministic"
    """The same bits run to run for one batch shape; another shape may round differently."""
    TOLERANCE = "tolerance"
    """Within the rounding of the dtype; greedy tokens are equal in float32."""


class StartupCost(StrEnum):
    """What a plugin adds to start-up, in orders of magnitude."""

    NONE = "none"
    SECONDS = "seconds"
    MINUTES = "minutes"


class NoOptions(BaseModel):
    """The options of a plugin that has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Refusal:
    """Why a plugin can't be used here, and what the user can do about it."""

    reason: str
    remedy: str


class Plugin(ABC):
    """Base of everything a distribution can register.

    A subclass is found through its entry point, whose name must equal `NAME`. One instance is
    made for one engine, with options that were checked against `OPTIONS`; nothing is shared
    between two engines of one process.
    """

    NAME: ClassVar[str]
    """The public name, lower case with underscores; unique within the kind."""
    SUMMARY: ClassVar[str]
    """One line for `engine plugins`, `--help` and the documentation."""
    ALIASES: ClassVar[tuple[str, ...]] = ()
    """Other names that select this plugin."""
    OPTIONS: ClassVar[type[BaseModel]] = NoOptions
    """The typed options; unknown or ill-typed ones are an error that names them."""
    DEVICES: ClassVar[frozenset[str] | None] = None
    """Device types it runs on (`cpu`, `cuda`, …); None means any."""
    NUMERICS: ClassVar[Numerics] = Numerics.BITWISE
    STARTUP_COST: ClassVar[StartupCost] = StartupCost.NONE
    SETTINGS: ClassVar[frozenset[str]] = frozenset()
    """The fields of `CompilationConfig` that it reads. A field that the user set and that no
    selected plugin reads is reported as having no effect."""
    VERSION: ClassVar[str] = "1"
    """Part of the fingerprint: change it when what the plugin produces changes."""

    def __init__(self, options: BaseModel | None = None) -> None:
        self.options: Any = options if options is not None else self.OPTIONS()

    @classmethod
    def refuse(cls, facts: Facts) -> Refusal | None:
        """Say why this plugin can't be used with these facts, or None if it can.

        Called by resolution before anything is loaded. Must be pure. A subclass that adds a
        condition calls `super().refuse(facts)` first.
        """
        if cls.DEVICES is not None and facts.device.type not in cls.DEVICES:
            return Refusal(
                reason=f"{cls.NAME} runs on {', '.join(sorted(cls.DEVICES))}, "
                f"this device is {facts.device.type}",
                remedy=f"choose another, or a device among {', '.join(sorted(cls.DEVICES))}",
            )
        return None

    def fingerprint(self) -> str:
        """Return what identifies the plugin's output in a cache key: name, version, options.

        An option that is marked `engine.cache_key.OutOfKey` isn't in it. A subclass that knows of
        more that shapes what it makes adds that to what `super().fingerprint()` returns.
        """
        options = json.dumps(settings_factors(self.options), sort_keys=True)
        return f"{self.NAME}/{self.VERSION}/{options}"
