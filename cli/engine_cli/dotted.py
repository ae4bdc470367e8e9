"""Dotted flags: `-cc.mode none`, `--backend-options.key=value`, rewritten before click parses.

Click knows a fixed set of flags; what follows the dot is a name inside a group or a mapping, so
it is taken out of the arguments first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from engine.settings_schema import Schema

ABBREVIATION = "-cc"
"""Stands for `--compilation-config`, alone or dotted."""
_LONG = "--compilation-config"


class Dotted(NamedTuple):
    """One dotted flag: how it was spelt, the dotted name that it means, its text."""

    spelled: str
    name: str
    text: str


def take_dotted(arguments: Sequence[str], schema: Schema) -> tuple[list[str], list[Dotted]]:
    """Split the arguments into those that click parses and the dotted ones.

    Raises:
        click.UsageError: a dotted flag has no value.
    """
    heads = {
        field.flag: field.name
        for field in schema.fields.values()
        if field.is_group or field.is_mapping
    }
    kept: list[str] = []
    dotted: list[Dotted] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*kept, argument, *rest], dotted
        flag, equals, text = argument.partition("=")
        if (name := _name(flag, heads, schema)) is None:
            kept.append(
                _LONG + argument.removeprefix(ABBREVIATION) if flag == ABBREVIATION else argument
            )
            continue
        if not equals:
            if not rest:
                raise click.UsageError(f"{flag} needs a value: {flag}=VALUE")
            text = rest.pop(0)
        dotted.append(Dotted(flag, name, text))
    return kept, dotted


def _name(flag: str, heads: Mapping[str, str], schema: Schema) -> str | None:
    head, dot, tail = flag.partition(".")
    head = _LONG if head == ABBREVIATION else head.replace("_", "-")
    if not dot or head not in heads:
        return None
    return schema.dotted(f"{heads[head]}.{tail}")
