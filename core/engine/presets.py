"""What the optimisation levels `-O0` … `-O3` stand for, as a plugin says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.plugin import Plugin


@dataclass(frozen=True)
class Level:
    """The defaults of one level; each a list of preferences.

    The first name of a list that is installed and fits the machine is taken; passing one over is
    said in one line. A setting that the user gives is never touched by a level.
    """

    summary: str
    compile_modes: tuple[str, ...]
    cudagraph_modes: tuple[str, ...]
    backends: tuple[str, ...]
    attention: tuple[str, ...]


class Preset(Plugin):
    """A table of levels. A vendor replaces the table, and so the defaults, with `--preset`."""

    LEVELS: ClassVar[Mapping[int, Level]]
