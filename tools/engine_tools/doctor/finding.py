"""What a check says: how bad it is, what was seen, what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """The engine starts, but slower or with less than it could have."""
    ERROR = "error"
    """The engine can't start, or can't do what the settings ask for."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check looked at.

    Attributes:
        check: the check's name.
        level: how bad it is.
        what: what was seen.
        remedy: what to do; empty when it is ok.
    """

    check: str
    level: Level
    what: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as JSON wants it."""
        return {key: str(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Reporter:
    """Makes the findings of one check.

    Args:
        check: the check's name.
    """

    check: str

    def ok(self, what: str) -> Finding:
        """Return that something is as it should be."""
        return Finding(self.check, Level.OK, what)

    def warning(self, what: str, remedy: str) -> Finding:
        """Return that the engine can do with something, but not well."""
        return Finding(self.check, Level.WARNING, what, remedy)

    def error(self, what: str, remedy: str) -> Finding:
        """Return that the engine can't do with something."""
        return Finding(self.check, Level.ERROR, what, remedy)
