"""A group whose commands are imported when they run, a stranger's as well as ours."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple

import click

from engine.errors import ConfigError, PluginError
from engine_cli.state import state_of


class Entry(NamedTuple):
    """One command of ours: where it is, and the line that `--help` shows."""

    path: str
    summary: str


class LazyGroup(click.Group):
    """Shows every command without importing one.

    Args:
        entries: our commands by name.
        **options: as for `click.Group`.
    """

    def __init__(self, *, entries: Mapping[str, Entry], **options: Any) -> None:
        super().__init__(**options)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our commands, then those of other distributions."""
        foreign = state_of(ctx).registry.names("commands")
        return [*self._entries, *(name for name in foreign if name not in self._entries)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command.

        Raises:
            ConfigError: another distribution's command can't be imported, or is no command.
        """
        if (entry := self._entries.get(cmd_name)) is not None:
            command: click.Command = resolve_name(entry.path)
            return command
        registry = state_of(ctx).registry
        if cmd_name not in registry.names("commands"):
            return None
        try:
            loaded = registry.load("commands", cmd_name)
        except PluginError as error:
            raise ConfigError(f"{error} (`engine --debug {cmd_name}` shows more)") from error
        if not isinstance(loaded, click.Command):
            claim = registry.find("commands", cmd_name)
            raise ConfigError(f"command {claim}: its hook must return a click command")
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names, or suggest one."""
        name = args[0]
        if not name.startswith("-") and name not in (names := self.list_commands(ctx)):
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"no such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write our commands with their summaries, then the others with their origin."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._entries.items()])
        claims = state_of(ctx).registry.claims("commands")
        rows = [
            (
                claim.name,
                f"from {claim.distribution} {claim.version}"
                + ("; not reachable, engine has a command of that name" * self._hidden(claim.name)),
            )
            for claim in claims
        ]
        if rows:
            with formatter.section("Commands of other distributions"):
                formatter.write_dl(rows)

    def _hidden(self, name: str) -> bool:
        return name in self._entries
