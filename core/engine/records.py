"""What became of each setting, and why: the records that resolution leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from engine.config import EngineConfig


@dataclass(frozen=True)
class Record:
    """How one setting came to its value.

    Attributes:
        setting: dotted name, as in the configuration.
        requested: what was asked for, or empty when nothing was.
        effective: what is in force.
        decided_by: who decided (`--dtype`, `level 2`, `device`, `model`, …).
        reason: why, in a few words.
        remedy: what to do to get something else; empty when there is nothing to say.
    """

    setting: str
    requested: str
    effective: str
    decided_by: str
    reason: str
    remedy: str = ""

    @property
    def degraded(self) -> bool:
        """Whether something that was wanted isn't in force."""
        return bool(self.remedy)


@dataclass(frozen=True)
class Resolution:
    """The settings in force and how each came about."""

    config: EngineConfig
    records: tuple[Record, ...]

    def __getitem__(self, setting: str) -> Record:
        """Return the record of one setting.

        Raises:
            KeyError: there is none of that name.
        """
        for record in self.records:
            if record.setting == setting:
                return record
        raise KeyError(setting)

    def with_records(self, records: Iterable[Record], **changes: Any) -> Resolution:
        """Return a copy with more records and changed fields (what loading decided)."""
        return Resolution(self.config.model_copy(update=changes), (*self.records, *records))

    def to_dicts(self) -> list[dict[str, str]]:
        """Return the records as plain dictionaries, for JSON."""
        return [asdict(record) for record in self.records]
