"""Writes a table: drawn on a terminal, as aligned text where a program may read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO


def write_table(
    stream: IO[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    highlight: Sequence[str | None] = (),
) -> None:
    """Write rows of text under column titles.

    Args:
        stream: where to write.
        columns: the titles.
        rows: as many cells as there are columns, each.
        highlight: a colour, or None, for each row; used on a terminal only.
    """
    if stream.isatty():
        _draw(stream, columns, rows, highlight or [None] * len(rows))
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        stream.write(f"{line.rstrip()}\n")


def _draw(
    stream: IO[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    highlight: Sequence[str | None],
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, header_style="bold")
    for row, style in zip(rows, highlight, strict=True):
        table.add_row(*map(Text, row), style=style)
    Console(file=stream).print(table)
