"""`engine config`: what the sources say, before anything is decided."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click
from pydantic import BaseModel

from engine.config import EngineConfig
from engine.settings_schema import Schema
from engine_cli.examples import with_examples
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.state import State, command_settings, debug_option
from engine_cli.tables import write_table
from engine_server.config import ServerConfig

_DEFAULT = "default"
_SECRET = "(not shown)"  # noqa: S105 - what is printed instead of one


@settings_command(
    "show",
    models=(EngineConfig, ServerConfig),
    examples=(
        "engine config show",
        "engine config show --config engine.yaml --port 8080 --given",
    ),
    params=[
        click.Option(["--given"], is_flag=True, help="Only what some source says."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
    ],
)
@click.pass_obj
def show(state: State, /, sources: Sources, given: bool, as_json: bool) -> None:
    """Show each setting of `engine serve` with its value and who said it.

    Reads flags, environment and file and nothing else; what a default becomes for a model on this
    machine is told by `engine explain`.
    """
    settings = sources.settings(state)
    server, origins = sources.build(ServerConfig)
    state.tell_notes()
    rows = [
        *_rows(EngineConfig, settings.config, settings.origins),
        *_rows(ServerConfig, server, origins),
    ]
    rows = [row for row in rows if not given or row["source"] != _DEFAULT]
    if as_json:
        click.echo(json.dumps(rows, indent=2, default=str))
        return
    cells = [(row["setting"], _text(row["value"]), row["source"], row["variable"]) for row in rows]
    write_table(sys.stdout, ("setting", "value", "said by", "variable"), cells)


def _rows(
    model: type[BaseModel], values: BaseModel, origins: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    for field in Schema.of(model).fields.values():
        if field.is_group:
            continue
        value: Any = values
        for part in field.name.split("."):
            value = getattr(value, part)
        said = [by for name, by in origins.items() if _is_in(name, field.name)]
        yield {
            "setting": field.name,
            "value": _SECRET if field.is_secret and value else value,
            "source": ", ".join(dict.fromkeys(said)) or _DEFAULT,
            "variable": field.variable,
        }


def _is_in(name: str, setting: str) -> bool:
    """Say whether an origin speaks of a setting: of it, or of a key of it."""
    return name == setting or name.startswith(f"{setting}.")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None or value == {} else str(value)


config = click.Group(
    "config",
    context_settings=command_settings(),
    params=[debug_option()],
    help=with_examples("Look at what is configured.", "engine config show"),
)
config.add_command(show)
