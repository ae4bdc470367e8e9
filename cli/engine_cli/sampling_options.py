"""Makes click options of the fields of `SamplingParams`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

import click
import msgspec

from engine.errors import RequestError
from engine.sampling_params import SamplingParams
from engine.settings_schema import ValueProblem, read_pair

SECTION = "Sampling"
_RENAMED = {"seed": "request_seed"}
"""Fields whose name is already that of an engine setting."""
WITHOUT_FLAG = frozenset({"structured_outputs", "pooling"})
"""Fields that no command of ours makes use of."""


class NumberOrNone(click.types.StringParamType):
    """A number, or `none` for no limit.

    Args:
        number: the type of the number.
    """

    def __init__(self, number: type[int | float]) -> None:
        self.number = click.types.convert_type(number)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text, or fail naming the option."""
        return value if str(value).lower() == "none" else self.number.convert(value, param, ctx)


class KeyNumber(click.types.StringParamType):
    """`TOKEN=NUMBER`, an entry of a table of biases."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text, or fail naming the option."""
        try:
            key, number = read_pair(value)
            return int(key), float(number)
        except (ValueProblem, ValueError, TypeError):
            self.fail(f"{value!r} must be TOKEN_ID=NUMBER", param, ctx)


class SamplingOption(click.Option):
    """The option of one field."""

    section = SECTION

    def __init__(self, field: msgspec.structs.FieldInfo, help_text: str, default: Any) -> None:
        kind, nullable = _bare(field.type)
        name = _RENAMED.get(field.name, field.name)
        flag = f"--{name.replace('_', '-')}"
        self.field_name = field.name
        self.shown_default = default
        options: dict[str, Any] = {"help": help_text}
        if kind is bool:
            super().__init__([f"{flag}/--no-{flag[2:]}", name], default=None, **options)
            return
        options["type"], options["metavar"] = _type_of(kind, nullable=nullable)
        options["multiple"] = get_origin(kind) in (list, dict)
        super().__init__([flag, name], **options)

    def read(self, value: Any) -> Any:
        """Return the value as `SamplingParams` wants it."""
        if isinstance(self.type, KeyNumber):
            return dict(value)
        if isinstance(value, tuple):
            return list(value)
        unlimited = isinstance(self.type, NumberOrNone) and isinstance(value, str)
        return None if unlimited else value

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return the flags and the help with its default."""
        names = " / ".join([*self.opts, *self.secondary_opts])
        metavar = "" if self.secondary_opts else f" {self.make_metavar(ctx)}"
        default = self.shown_default
        shown = {True: "on", False: "off"}[default] if isinstance(default, bool) else default
        facts = "" if default in (None, [], {}) else f" [default: {shown}]"
        return f"{names}{metavar}", f"{self.help}{facts}"


def sampling_options(*, without: Sequence[str] = (), **defaults: Any) -> Iterator[SamplingOption]:
    """Yield an option for every field of `SamplingParams`.

    Args:
        without: fields that make no sense for the command.
        **defaults: defaults that differ from those of `SamplingParams`.
    """
    documentation = _documentation()
    for field in msgspec.structs.fields(SamplingParams):
        default = defaults.get(field.name, _default(field))
        if field.name not in WITHOUT_FLAG.union(without):
            yield SamplingOption(field, documentation[field.name], default)


def take_sampling_params(context: click.Context, **defaults: Any) -> SamplingParams:
    """Take the sampling options out of a context's parameters.

    Args:
        context: of the running command.
        **defaults: as given to `sampling_options`.

    Raises:
        click.UsageError: a value is out of range; names the flag and what is allowed.
    """
    values, flags = dict(defaults), dict[str, str]()
    for param in context.command.params:
        if isinstance(param, SamplingOption):
            flags[param.field_name] = param.opts[0]
            value = context.params.pop(param.name or "")
            if value is not None and value != ():
                values[param.field_name] = param.read(value)
    try:
        return SamplingParams(**values)
    except RequestError as error:
        field = error.param or ""
        sentence = str(error).removeprefix(field)
        raise click.UsageError(f"{flags.get(field, field)}{sentence}", context) from None


def _default(field: msgspec.structs.FieldInfo) -> Any:
    factory: Any = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


def _bare(annotation: Any) -> tuple[Any, bool]:
    members = [arg for arg in get_args(annotation) if arg is not NoneType]
    if NoneType in get_args(annotation) and len(members) == 1:
        return members[0], True
    return annotation, False


def _type_of(kind: Any, *, nullable: bool) -> tuple[Any, str]:
    """Return what click calls a type, and what stands for a value in the help."""
    if get_origin(kind) is dict:
        return KeyNumber(), "TOKEN_ID=NUMBER"
    single = get_args(kind)[0] if get_origin(kind) is list else kind
    metavar = {int: "N", float: "X"}.get(single, "TEXT")
    return (NumberOrNone(single) if nullable else single), metavar


def _documentation() -> Mapping[str, str]:
    """Read the `Attributes:` of the docstring, so that the help can't drift from it."""
    _, _, attributes = (SamplingParams.__doc__ or "").partition("Attributes:")
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", attributes, re.M)
    return {name: _capital(" ".join(text.split())) for name, text in entries}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
