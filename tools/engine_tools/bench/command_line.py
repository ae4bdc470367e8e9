"""Writes settings as the command that asks for them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from engine import EngineConfig, Settings
from engine.plugin_files import files_in_force
from engine.settings_schema import Schema
from engine_tools.verify.matrix import Combination

AXES = {
    "compilation_config.mode": "--compilation-mode",
    "compilation_config.cudagraph_mode": "--cudagraph-mode",
    "compilation_config.backend": "--backend",
}
"""The settings of the three axes, with their flags."""


def command_line(combination: Combination, settings: Settings) -> str:
    """Return the command that serves with a combination and with the flags that were given.

    Args:
        combination: its modes.
        settings: as the user gave them; what a file or a variable said isn't repeated.
    """
    words = ["engine", "serve"]
    for path in files_in_force():
        words += ["--plugin", str(path)]
    for name, origin in settings.origins.items():
        if name not in AXES and (origin == "MODEL" or origin.startswith("-")):
            words += _flags(name, settings.config)
    for flag, value in zip(AXES.values(), combination, strict=True):
        words += [flag, value]
    return shlex.join(words)


def said_elsewhere(settings: Settings) -> list[str]:
    """Return the files and variables that said something, which the command doesn't repeat."""
    others = {
        origin
        for name, origin in settings.origins.items()
        if name not in AXES and origin != "MODEL" and not origin.startswith("-")
    }
    return sorted(others)


def _flags(name: str, config: EngineConfig) -> Iterator[str]:
    setting, key = Schema.of(EngineConfig)[name]
    value: Any = config.model_dump(mode="json")
    for part in setting.name.split("."):
        value = value[part]
    if key is not None:
        yield from (setting.flag, f"{key}={_text(value[key])}")
    elif setting.is_flag:
        yield setting.flag if value else f"--no-{setting.flag.removeprefix('--')}"
    elif setting.is_list:
        yield from (setting.flag, ",".join(map(_text, value)))
    else:
        yield from (setting.flag, _text(value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
