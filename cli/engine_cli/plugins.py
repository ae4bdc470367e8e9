"""`engine plugins`: what is installed, whether it works, and what each says about itself."""

from __future__ import annotations

import difflib
import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click

from engine.errors import ConfigError, UnknownPluginError
from engine.names import normalize
from engine.registry import Claim, PluginStatus, Registry
from engine_cli.plugin_description import describe, summary_of
from engine_cli.state import command_settings, debug_option, state_of
from engine_cli.tables import write_table

_COLUMNS = ("kind", "name", "distribution", "version", "state", "summary")


def _checked_kind(context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Accept any spelling of a kind (`compile-mode`), and suggest one for a misspelling."""
    if value is None:
        return None
    kinds = state_of(context).registry.kinds()
    name = normalize(value)
    for kind in (name, f"{name}s"):
        if kind in kinds:
            return kind
    near = difflib.get_close_matches(name, kinds, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise click.BadParameter(f"no kind {value!r}.{hint} Kinds: {', '.join(kinds)}.", context)


def _kind_option() -> click.Option:
    return click.Option(
        ["--kind"], metavar="KIND", callback=_checked_kind, help="Only one kind of plugin."
    )


def _json_option() -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


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
        describe(claim, registry.load_claim(claim)) for claim in _matching(registry, name, kind)
    ]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for number, content in enumerate(found):
        click.echo("\n" * (number > 0), nl=False)
        _print(content)


def _matching(registry: Registry, name: str, kind: str | None) -> list[Claim]:
    """Return the plugins of a name, which may be used in several kinds.

    Raises:
        ConfigError: nothing has that name; suggests one.
        DuplicatePluginError: two distributions have it.
    """
    prefix, _, plain = name.rpartition("/")
    kinds = [kind or prefix] if kind or prefix in registry.kinds() else registry.kinds()
    plain = plain if prefix in registry.kinds() else name
    bare = normalize(plain).rpartition(":")[2]
    # Aliases are known only after an import, so they are looked up when no name fits.
    by_name = [k for k in kinds if bare in registry.names(k)]
    found = []
    for one in by_name or kinds:
        try:
            found.append(registry.find(one, plain))
        except UnknownPluginError:
            continue
    if not found:
        names = sorted({claim.name for k in kinds for claim in registry.claims(k)})
        near = difflib.get_close_matches(bare, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no plugin is called {name!r}.{hint} `engine plugins` lists all.")
    return found


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
    params=[_kind_option(), _json_option(), debug_option()],
    help="List the installed plugins, the broken ones with the reason.",
)
plugins.add_command(
    click.Command(
        "show",
        callback=_show,
        context_settings=command_settings(),
        params=[
            click.Argument(["name"]),
            _kind_option(),
            _json_option(),
            debug_option(),
        ],
        help="Show what plugin NAME says about itself: options, numerics, requirements, origin. "
        "NAME may be kind/name or distribution:name.",
    )
)
