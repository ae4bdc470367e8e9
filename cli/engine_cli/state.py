"""What one run of the command line shares between its parts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import click

from engine.plugin_files import VARIABLE
from engine.registry import Registry


@dataclass
class State:
    """One run.

    Attributes:
        debug: show the traceback of an expected error too.
        notes: lines about the sources of settings, told once.
    """

    debug: bool = False
    notes: list[str] = field(default_factory=list)

    @cached_property
    def registry(self) -> Registry:
        """The installed plugins."""
        return Registry()

    def tell_notes(self) -> None:
        """Print the notes so far on standard error."""
        for note in self.notes:
            click.echo(f"engine: {note}", err=True)
        self.notes.clear()


def state_of(context: click.Context) -> State:
    """Return the state of the run that a context belongs to."""
    return context.ensure_object(State)


def _remember_debug(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        state_of(context).debug = True


def _remember_files(
    context: click.Context, _param: click.Parameter, value: tuple[str, ...]
) -> None:
    if value:
        state = state_of(context)
        # The environment reaches the engine's own process as well.
        named = [*os.environ.get(VARIABLE, "").split(os.pathsep), *value]
        os.environ[VARIABLE] = os.pathsep.join(name for name in named if name)
        state.__dict__.pop("registry", None)


def plugin_option() -> click.Option:
    """Return the `--plugin` option, which adds plugins in single files for one run."""
    return click.Option(
        ["--plugin"],
        multiple=True,
        is_eager=True,
        expose_value=False,
        metavar="FILE.py",
        callback=_remember_files,
        help="Use the plugins of a Python file, which needs no packaging; may be repeated. "
        f"[env: {VARIABLE}]",
    )


def debug_option() -> click.Option:
    """Return the `--debug` flag, which every command takes."""
    return click.Option(
        ["--debug"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        envvar="ENGINE_DEBUG",
        callback=_remember_debug,
        help="Show the traceback of an error. [env: ENGINE_DEBUG]",
    )


def command_settings() -> dict[str, Any]:
    """Return the click settings of every command: `-h`, and `_` for `-` in flags."""
    return {
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda flag: flag.replace("_", "-"),
        "max_content_width": 100,
    }
