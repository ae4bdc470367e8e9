"""What can be set, read from the settings models themselves, and how text becomes a value.

Flags, environment variables, configuration files and help are all made from this, so that a
field added to a model is reachable from everywhere at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

_SHORT = {"compilation_config.mode": "compilation_mode"}
"""Short names that aren't simply the last part of the dotted name."""


class ValueProblem(ValueError):  # noqa: N818  (it is always told with the setting's name added)
    """A value can't be used; the text says what is allowed."""


@dataclass(frozen=True)
class SettingField:
    """One thing that can be set.

    Attributes:
        name: dotted name, `compilation_config.cudagraph_mode`.
        info: the field's annotation, constraints, default and documentation.
        owner: the model that it's a field of.
    """

    name: str
    info: FieldInfo
    owner: type[BaseModel]

    @property
    def short(self) -> str:
        """The name without its group, for flags and environment variables."""
        return _SHORT.get(self.name, self.name.rpartition(".")[2])

    @property
    def flag(self) -> str:
        """The command-line flag, `--cudagraph-mode`."""
        return f"--{self.short.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable, `ENGINE_CUDAGRAPH_MODE`."""
        return f"ENGINE_{self.short.upper()}"

    @property
    def help(self) -> str:
        """The field's documentation."""
        return " ".join((self.info.description or "").split())

    @cached_property
    def type(self) -> Any:
        """The type of a given value, without `None` and constraints."""
        return _bare(self.info.annotation)

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return self.type is bool

    @property
    def is_list(self) -> bool:
        """Whether it holds several values."""
        return get_origin(self.type) in (tuple, list, set, frozenset)

    @property
    def is_mapping(self) -> bool:
        """Whether it holds names of its own, that only a plugin or a model knows."""
        return get_origin(self.type) is dict

    @property
    def is_group(self) -> bool:
        """Whether it is a model of settings of its own."""
        return isinstance(self.type, type) and issubclass(self.type, BaseModel)

    @property
    def is_secret(self) -> bool:
        """Whether its value may not be shown (declared with `Field(repr=False)`)."""
        return not self.info.repr

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a closed set; empty when it is open."""
        return tuple(map(str, get_args(self.type))) if get_origin(self.type) is Literal else ()

    @property
    def default(self) -> Any:
        """The built-in default."""
        return self.info.get_default(call_default_factory=True)

    def validate(self, value: Any) -> Any:
        """Return the value in the field's type.

        Raises:
            ValueProblem: says what is allowed.
        """
        try:
            return self._adapter.validate_python(read_text(self, value))
        except ValidationError as error:
            raise ValueProblem(_sentence(self, error, value)) from None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        annotation: Any = self.info.annotation
        for constraint in self.info.metadata:
            annotation = Annotated[annotation, constraint]
        return TypeAdapter(annotation)


class Target(NamedTuple):
    """What a dotted name means: a field, or one key of a mapping field."""

    field: SettingField
    key: str | None = None


@dataclass(frozen=True)
class Schema:
    """Every setting of one or several models, by dotted name.

    Attributes:
        fields: what can be set.
        shortcuts: names that, when true, stand for explicit values of other settings.
    """

    fields: Mapping[str, SettingField]
    shortcuts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, *models: type[BaseModel], shortcuts: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Self:
        """Collect the fields of settings models.

        Raises:
            ValueError: two fields would share a flag and an environment variable.
        """
        fields = {field.name: field for model in models for field in _walk(model, "")}
        by_short: dict[str, SettingField] = {}
        for setting in fields.values():
            if (other := by_short.setdefault(setting.short, setting)) is not setting:
                raise ValueError(f"{other.name} and {setting.name} share the name {setting.short}")
        return cls(fields, shortcuts or {})

    def __getitem__(self, name: str) -> Target:
        """Return what a dotted name means.

        Raises:
            KeyError: nothing has that name.
        """
        if (field := self.fields.get(name)) is not None:
            return Target(field)
        head = name
        while head := head.rpartition(".")[0]:
            if (field := self.fields.get(head)) is not None and field.is_mapping:
                return Target(field, name.removeprefix(f"{head}."))
        raise KeyError(name)

    def dotted(self, spelling: str) -> str:
        """Return the dotted name of a spelling: hyphens, or the short name.

        Whatever is unknown is returned with underscores, for a look-up to refuse. Keys of a mapping
        belong to a plugin or a model and are left as they are.
        """
        parts = spelling.split(".")
        names = {field.short: name for name, field in self.fields.items()}
        name = parts[0].replace("-", "_")
        name = name if name in self.fields else names.get(name, name)
        for part in parts[1:]:
            field = self.fields.get(name)
            plain = part if field is not None and field.is_mapping else part.replace("-", "_")
            name = f"{name}.{plain}"
        return name

    def names_in(self, group: str) -> list[str]:
        """Return the names inside a group; for `""`, the short names of all settings."""
        if not group:
            return [*self.shortcuts, *(field.short for field in self.fields.values())]
        return [n.removeprefix(f"{group}.") for n in self.fields if n.startswith(f"{group}.")]


def closest(name: str, possible: Iterable[str]) -> str | None:
    """Return the name that a misspelt one was probably meant to be."""
    return next(iter(difflib.get_close_matches(name, list(possible), n=1, cutoff=0.7)), None)


def read_text(field: SettingField, value: Any) -> Any:
    """Read text as a list or a mapping where the field is one; pass anything else on.

    Raises:
        ValueProblem: the text has not that form.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if field.is_list:
        if text.startswith("["):
            return read_scalar(text)
        return [item.strip() for item in text.split(",") if item.strip()]
    if not (field.is_group or field.is_mapping):
        return value
    read = read_scalar(text)
    if isinstance(read, str) and "=" in read:
        return dict(read_pair(pair) for pair in text.split(",") if pair.strip())
    return read


def read_switch(value: Any) -> bool:
    """Read true or false, in any spelling that a boolean field takes.

    Raises:
        ValueProblem: it is neither.
    """
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        raise ValueProblem("must be true or false") from None


def read_pair(text: str) -> tuple[str, Any]:
    """Read `key=value`, the value as a YAML scalar or flow collection.

    Raises:
        ValueProblem: it has no `=` or no key.
    """
    key, equals, value = text.strip().partition("=")
    if not equals or not key.strip():
        raise ValueProblem("must be key=value")
    return key.strip(), read_scalar(value)


def read_scalar(text: str) -> Any:
    """Read text as YAML (JSON is YAML): `8`, `true`, `[1, 2]`, `{a: 1}`.

    Raises:
        ValueProblem: it is not YAML.
    """
    import yaml  # only needed when there is text to read

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or "unreadable"
        raise ValueProblem(f"must be JSON or YAML ({reason})") from None


def _walk(model: type[BaseModel], prefix: str) -> Iterator[SettingField]:
    for name, info in model.model_fields.items():
        field = SettingField(f"{prefix}{name}", info, model)
        yield field
        if field.is_group:
            yield from _walk(field.type, f"{field.name}.")


def _bare(annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _bare(get_args(annotation)[0])
    if origin in (Union, UnionType):
        members = [arg for arg in get_args(annotation) if arg is not NoneType]
        if len(members) == 1:
            return _bare(members[0])
    return annotation


def _sentence(field: SettingField, error: ValidationError, value: Any) -> str:
    """Say what is allowed, from the first thing that is wrong."""
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "literal_error":
        near = closest(str(value), field.choices)
        hint = f". Did you mean {near!r}?" if near else ""
        return f"must be {_either(field.choices)}{hint}"
    if problem["type"].startswith("bool_"):
        return "must be true or false"
    message = problem["msg"].replace("Input should be", "must be").split(", unable to")[0]
    where = [str(part + 1) for part in problem["loc"] if isinstance(part, int)]
    return f"item {where[0]} {message}" if where else message


def _either(choices: tuple[str, ...]) -> str:
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
