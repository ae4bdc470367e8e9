"""The table of settings in force: what was asked, what it became, who decided and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO

from engine.resolution import Record, Resolution
from engine_cli.tables import write_table

_COLUMNS = ("setting", "requested", "effective", "decided by", "reason")
_ALWAYS = frozenset(
    {
        "model",
        "device",
        "dtype",
        "attention",
        "compilation_config.mode",
        "compilation_config.cudagraph_mode",
        "compilation_config.backend",
    }
)
"""What everybody wants to see, whoever decided it."""


def interesting(records: Iterable[Record]) -> list[Record]:
    """Return the rows to show by default: the main choices, what was asked for, what differs."""
    return [r for r in records if r.setting in _ALWAYS or r.requested or r.degraded]


def show_settings(resolution: Resolution, stream: IO[str], *, verbose: bool = False) -> None:
    """Write the table.

    Args:
        resolution: the settings in force.
        stream: where to write.
        verbose: every setting, not only the interesting ones.
    """
    records = list(resolution.records) if verbose else interesting(resolution.records)
    write_table(
        stream,
        _COLUMNS,
        [_cells(record) for record in records],
        highlight=["yellow" if record.degraded else None for record in records],
    )


def _cells(record: Record) -> Sequence[str]:
    reason = f"{record.reason}; {record.remedy}" if record.remedy else record.reason
    setting = record.setting.removeprefix("compilation_config.")
    return (setting, record.requested or "-", record.effective, record.decided_by, reason)
