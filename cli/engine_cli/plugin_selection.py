"""Which plugins a subcommand of `engine plugins` is about."""

from __future__ import annotations

import difflib

import click

from engine.errors import ConfigError, UnknownPluginError
from engine.names import normalize
from engine.registry import Claim, Registry
from engine_cli.state import state_of


def checked_kind(context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
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


def kind_option() -> click.Option:
    """Return the `--kind` option."""
    return click.Option(
        ["--kind"], metavar="KIND", callback=checked_kind, help="Only one kind of plugin."
    )


def json_option() -> click.Option:
    """Return the `--json` flag."""
    return click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


def matching(registry: Registry, name: str, kind: str | None) -> list[Claim]:
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
