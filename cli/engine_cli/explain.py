"""`engine explain`: the settings in force and why, without loading a weight."""

from __future__ import annotations

import json
import sys

import click

from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.settings_table import show_settings
from engine_cli.sources import Sources
from engine_cli.state import State


@settings_command(
    "explain",
    params=[
        verbose_option(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print every record as JSON."),
    ],
)
@click.pass_obj
def explain(state: State, /, sources: Sources, verbose: bool, as_json: bool) -> None:
    """Show what each setting becomes for MODEL on this machine, and why.

    Reads the model's configuration but none of its weights.
    """
    settings = sources.settings(state)
    state.tell_notes()
    from engine import resolve_settings

    resolution = resolve_settings(settings)
    if as_json:
        click.echo(json.dumps(resolution.to_dicts(), indent=2))
    else:
        show_settings(resolution, sys.stdout, verbose=verbose)
