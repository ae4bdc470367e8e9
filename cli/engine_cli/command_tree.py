"""Every command with its flags, as plain data: what shell completion and tests walk over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from engine_cli.options import SettingOption, plugin_kind
from engine_cli.state import state_of


@dataclass(frozen=True)
class Flag:
    """One spelling of an option.

    Attributes:
        name: with its dashes.
        takes_value: whether a value follows.
        values: the values it may have; empty when that is open.
        help: one line.
    """

    name: str
    takes_value: bool
    values: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Node:
    """One command.

    Attributes:
        path: the words after `engine`, empty for `engine` itself.
        summary: one line.
        children: names of subcommands.
        flags: what it takes.
        command: click's own object.
    """

    path: tuple[str, ...]
    summary: str
    children: tuple[str, ...]
    flags: tuple[Flag, ...]
    command: click.Command


def walk(
    command: click.Command, context: click.Context, path: Sequence[str] = ()
) -> Iterator[Node]:
    """Yield a command and everything below it, parents first.

    Args:
        command: where to begin.
        context: of that command.
        path: the words that lead to it.
    """
    names: list[str] = []
    if isinstance(command, click.Group):
        names = command.list_commands(context)
    flags = tuple(_flags(command, context))
    yield Node(tuple(path), command.get_short_help_str(100), tuple(names), flags, command)
    for name in names:
        child = command.get_command(context, name) if isinstance(command, click.Group) else None
        if child is not None:
            yield from walk(child, enter(child, name, context), (*path, name))


def enter(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    """Return a context of a command as click makes it, without parsing anything.

    The settings matter: a command keeps the help flags of the first context that asks for them.
    """
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


def _flags(command: click.Command, context: click.Context) -> Iterator[Flag]:
    for param in command.get_params(context):
        if not isinstance(param, click.Option) or param.hidden:
            continue
        record = param.get_help_record(context)
        text = " ".join((param.help or (record[1] if record else "")).split())
        if isinstance(param, SettingOption):
            text = param.field.help
        for name in (*param.opts, *param.secondary_opts):
            takes = not param.is_flag and not param.count
            yield Flag(
                name, takes, _values(param, context) if takes else (), text.partition(". ")[0]
            )


def _values(param: click.Option, context: click.Context) -> tuple[str, ...]:
    if isinstance(param, SettingOption):
        if kind := plugin_kind(param.field):
            return tuple(state_of(context).registry.names(kind))
        return param.field.choices
    if isinstance(param.type, click.Choice):
        return tuple(map(str, param.type.choices))
    return ()
