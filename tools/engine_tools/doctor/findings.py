"""What is examined, and what a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from engine import EngineConfig
from engine_tools.doctor.gpus import Gpu, find_gpus


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """A start works, but something that would be expected doesn't."""
    ERROR = "error"
    """A start with these settings fails."""


@dataclass(frozen=True)
class Finding:
    """One answer of a check.

    Attributes:
        check: what was looked at.
        level: how bad it is.
        detail: what was found.
        remedy: what to do about it; empty when it is ok.
    """

    check: str
    level: Level
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Patient:
    """What a start would be given.

    Attributes:
        config: as asked for; nothing of it is decided yet.
        host, port: where the server would listen.
        uds: the Unix socket instead, or None.
    """

    config: EngineConfig
    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None

    @cached_property
    def gpus(self) -> list[Gpu]:
        """The NVIDIA devices that the driver names."""
        return find_gpus()

    @property
    def device(self) -> str:
        """The type of device that a start would take."""
        if self.config.device != "auto":
            return self.config.device
        return "cuda" if self.gpus else "cpu"
