"""`engine explain`: the settings in force and why, and what a start does, without one."""

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
    examples=(
        "engine explain ./model --cudagraph-mode full",
        "engine explain --verbose --json",
    ),
    params=[
        verbose_option(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print everything as JSON."),
    ],
)
@click.pass_obj
def explain(state: State, /, sources: Sources, verbose: bool, as_json: bool) -> None:
    """Show what each setting becomes for MODEL on this machine, and what a start will do.

    The settings come with the reason for each; then what is compiled and recorded, and what that
    took the last time here. Reads the model's configuration but none of its weights.
    """
    settings = sources.settings(state)
    state.tell_notes()
    from engine import plan_start

    plan = plan_start(settings)
    if as_json:
        content = {"settings": plan.resolution.to_dicts(), "plan": plan.to_dict()}
        click.echo(json.dumps(content, indent=2))
        return
    show_settings(plan.resolution, sys.stdout, verbose=verbose)
    click.echo()
    for line in plan.lines():
        click.echo(line)
