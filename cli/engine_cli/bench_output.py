"""The flags that every benchmark takes, and what becomes of its result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine_cli.tables import write_table

if TYPE_CHECKING:
    from engine_tools.bench.results import Presentable


def count(flag: str, default: int, text: str, *, least: int = 1) -> click.Option:
    """Return a flag that takes a whole number."""
    return click.Option(
        [flag], type=click.IntRange(min=least), default=default, show_default=True, help=text
    )


def output_options() -> list[click.Option]:
    """Return the flags that say where a result goes."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return [
        click.Option(
            ["--json", "json_file"], type=kind, metavar="FILE", help="Write every number as JSON."
        ),
        click.Option(
            ["--report"],
            type=kind,
            metavar="FILE",
            help="Write a page (.html) or a picture (.png); needs the extra `report`.",
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print the results only."),
    ]


def check_before(options: dict[str, Any]) -> None:
    """Refuse, before anything runs, outputs that couldn't be written.

    Raises:
        ConfigError: says which flag, and what to change.
    """
    from engine_tools.bench.report import check_outputs

    check_outputs(options["json_file"], options["report"])


def teller(options: dict[str, Any]) -> Any:
    """Return what prints a line of progress on standard error."""
    return lambda line: None if options["quiet"] else click.echo(line, err=True)


def show(result: Presentable, options: dict[str, Any]) -> None:
    """Print a result and write the files that were asked for."""
    from engine_tools.bench.report import write_json, write_report

    for number, table in enumerate(result.tables()):
        if number:
            click.echo(f"\n{table.title}")
        write_table(sys.stdout, table.columns, table.rows)
    if result.notes:
        click.echo()
    for note in result.notes:
        click.echo(note)
    if options["json_file"] is not None:
        write_json(result, options["json_file"])
    if options["report"] is not None:
        write_report(result, options["report"])
