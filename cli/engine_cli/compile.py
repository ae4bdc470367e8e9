"""`engine compile`: everything that a start would compile, as a directory for other machines."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import State


@settings_command(
    "compile",
    examples=(
        "engine compile ./model --out bundle",
        "engine serve ./model --cache-dir bundle --require-cache",
    ),
    params=[
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path),
            required=True,
            metavar="FOLDER",
            help="Where to write the bundle; must not exist, or be empty.",
        ),
        verbose_option(),
    ],
)
@click.pass_obj
def compile_command(state: State, /, sources: Sources, out: Path, verbose: bool) -> None:
    """Compile MODEL and write the result as a bundle: a folder that can be carried elsewhere.

    `engine serve MODEL --cache-dir FOLDER --require-cache`, with the same settings on a machine of
    the same kind, then starts without a compiler.
    """
    settings = sources.settings(state)
    state.tell_notes()
    from engine import compile_bundle

    with StartupProgress(sys.stderr, verbose=verbose) as progress:
        bundle = compile_bundle(settings, out, on_event=progress)
    count, size = len(bundle.artifacts), bundle.num_bytes / 2**20
    click.echo(f"wrote {count} artifacts, {size:.1f} MiB, to {out}")
    click.echo(f"start from them: engine serve MODEL --cache-dir {out} --require-cache")
