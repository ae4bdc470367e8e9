"""`engine plugins`: what is installed, whether it works, and what each says about itself."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click

from engine.registry import PluginStatus
from engine_cli.examples import with_examples
from engine_cli.plugin_check import check
from engine_cli.plugin_description import describe, summary_of
from engine_cli.plugin_new import new
from engine_cli.plugin_selection import json_option, kind_option, matching
from engine_cli.state import command_settings, debug_option, plugin_option, state_of
from engine_cli.tables import write_table

_COLUMNS = ("kind", "name", "distribution", "version", "state", "summary")


@click.pass_context
def _list(context: click.Context, /, kind: str | None, as_json: bool) -> None:
    if context.invoked_subcommand is not None:
        return
    statuses = state_of(context).registry.status(kind)
    rows = _rows(statuses)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    colours = {"broken": "red", "duplicate": "yellow"}
    write_table(
        sys.stdout,
        _COLUMNS,
        [[row[column] for column in _COLUMNS] for row in rows],
        highlight=[colours.get(row["state"]) for row in rows],
    )


def _rows(statuses: Iterable[PluginStatus]) -> list[dict[str, str]]:
    statuses = list(statuses)
    owners = Counter((status.claim.kind, status.claim.name) for status in statuses)
    rows = []
    for status in statuses:
        claim, state, summary = status.claim, status.state, status.error
        if not status.error:
            summary = summary_of(status.plugin)
            if owners[claim.kind, claim.name] > 1:
                state = "duplicate"
                summary = f"select it as {claim.distribution}:{claim.name}; {summary}"
        cells = (claim.kind, claim.name, claim.distribution, claim.version, state, summary)
        rows.append(dict(zip(_COLUMNS, cells, strict=True)))
    return rows


@click.pass_context
def _show(context: click.Context, /, name: str, kind: str | None, as_json: bool) -> None:
    registry = state_of(context).registry
    found = [
        describe(claim, registry.load_claim(claim)) for claim in matching(registry, name, kind)
    ]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for number, content in enumerate(found):
        click.echo("\n" * (number > 0), nl=False)
        _print(content)


def _print(content: dict[str, Any]) -> None:
    options = content.pop("options", [])
    click.echo(click.style(f"{content.pop('kind')}/{content.pop('name')}", bold=True))
    width = max(map(len, content)) + 2
    for key, value in content.items():
        if isinstance(value, dict):
            click.echo(f"  {key}")
            for inner, item in value.items():
                click.echo(f"    {inner}: {_text(item)}")
        else:
            click.echo(f"  {key.replace('_', ' '):<{width}}{_text(value)}")
    if options:
        click.echo("  options")
        columns = ("name", "type", "default", "help")
        write_table(sys.stdout, columns, [[_text(row[c]) for c in columns] for row in options])
    elif "aliases" in content:
        click.echo(f"  {'options':<{width}}-")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value not in (None, "") else "-"


plugins = click.Group(
    "plugins",
    callback=_list,
    invoke_without_command=True,
    context_settings=command_settings(),
    params=[kind_option(), json_option(), plugin_option(), debug_option()],
    help=with_examples(
        "List the installed plugins, the broken ones with the reason.",
        "engine plugins",
        "engine plugins --kind backends --json",
    ),
)
plugins.add_command(check)
plugins.add_command(new)
plugins.add_command(
    click.Command(
        "show",
        callback=_show,
        context_settings=command_settings(),
        params=[
            click.Argument(["name"]),
            kind_option(),
            json_option(),
            plugin_option(),
            debug_option(),
        ],
        help=with_examples(
            "Show what plugin NAME says about itself: options, numerics, requirements, origin. "
            "NAME may be kind/name or distribution:name.",
            "engine plugins show vllm_compile",
        ),
    )
)
