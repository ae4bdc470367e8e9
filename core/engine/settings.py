"""Several sources of settings become one configuration that remembers who said what.

Pure: nothing is looked up and nothing is decided here. A source is a `Layer` of raw values under
dotted names (`dtype`, `compilation_config.mode`, `compilation_config.backend_options.key`); the
first layer that names a setting wins. Text is read as the field's type wants it: `1,2` or
`[1, 2]` for a list, `a=1,b=2` or `{"a": 1}` for a mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.settings_schema import (
    Schema,
    SettingField,
    ValueProblem,
    closest,
    read_switch,
    read_text,
)

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class Layer:
    """What one source says.

    Attributes:
        name: the source: "command line", "environment", "engine.yaml".
        values: raw values by dotted name; a mapping may stand for all names below it.
        spelled: how the user wrote each name, for messages (`--dtype`); the source's name and
            the dotted name where it is absent.
        origins: what `Settings.origins` will say of a name, where that isn't its spelling.
    """

    name: str
    values: Mapping[str, Any]
    spelled: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)


class Statement(NamedTuple):
    """One source's word on one setting: its value, how it was spelt, who said it."""

    name: str
    value: Any
    label: str
    origin: str


@dataclass(frozen=True)
class Settings:
    """A configuration, and who said each value that was given explicitly.

    Attributes:
        config: every setting, the built-in defaults included.
        origins: dotted name to who said it (`--dtype`, `ENGINE_DTYPE`, `engine.yaml`); a name
            that is absent has its default.
    """

    config: EngineConfig
    origins: Mapping[str, str] = field(default_factory=dict)


def merge(layers: Sequence[Layer]) -> Settings:
    """Return the settings of several sources, the first of which wins.

    Raises:
        ConfigError: a name is unknown or a value unusable; says who wrote it and what is allowed.
    """
    return Settings(*build(EngineConfig, layers))


def build(model: type[ModelT], layers: Sequence[Layer]) -> tuple[ModelT, dict[str, str]]:
    """Fill any model of settings from layers; `merge` is this for `EngineConfig`.

    Returns:
        The model, and who said each value that was given.

    Raises:
        ConfigError: as for `merge`.
    """
    schema = Schema.of(model)
    said: dict[str, Statement] = {}
    problems: list[str] = []
    for layer in layers:
        for statement in _statements(layer, schema, problems):
            said.setdefault(statement.name, statement)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, statement in said.items():
        try:
            value = _validate(statement, schema)
        except ValueProblem as problem:
            problems.append(f"{_show(statement, schema)}: {problem}")
            continue
        if value is not None:  # an explicit null asks for the default, over later layers
            _put(values, name, value, schema)
            origins[name] = statement.origin
    if problems:
        raise ConfigError("\n".join(problems))
    return model(**values), origins


def as_settings(settings: EngineConfig | Settings, by: str = "request") -> Settings:
    """Return settings whose origins name every field that a configuration was given.

    Args:
        settings: returned as it is when it already knows its origins.
        by: who gave the fields.
    """
    if isinstance(settings, Settings):
        return settings
    return Settings(settings, dict.fromkeys(_given(settings, ""), by))


def agree(source: str, statements: Iterable[Statement], schema: Schema) -> Layer:
    """Make one layer of statements that may spell one setting in several ways.

    Args:
        source: name of the layer.
        statements: what was said, in order.
        schema: the settings that exist.

    Raises:
        ConfigError: two statements give one setting different values; names both.
    """
    kept: dict[str, Statement] = {}
    problems: list[str] = []
    for said in statements:
        for statement in _expand(said, schema, problems):
            first = kept.setdefault(statement.name, statement)
            if _contradict(first, statement, schema):
                problems.append(
                    f"{_show(first, schema)} and {_show(statement, schema)} "
                    "contradict each other; keep one"
                )
    if problems:
        raise ConfigError("\n".join(problems))
    return Layer(
        source,
        {name: statement.value for name, statement in kept.items()},
        {name: statement.label for name, statement in kept.items()},
        {name: statement.origin for name, statement in kept.items()},
    )


def _statements(layer: Layer, schema: Schema, problems: list[str]) -> Iterator[Statement]:
    for name, value in layer.values.items():
        label = layer.spelled.get(name, f"{layer.name}: {name}")
        origin = layer.origins.get(name, layer.spelled.get(name, layer.name))
        yield from _expand(Statement(name, value, label, origin), schema, problems)


def _expand(said: Statement, schema: Schema, problems: list[str]) -> Iterator[Statement]:
    """Split what stands for several settings, so that each can be overridden alone."""
    if (shortcut := schema.shortcuts.get(said.name)) is not None:
        yield from _expand_shortcut(said, shortcut, schema, problems)
        return
    try:
        setting, key = schema[said.name]
    except KeyError:
        problems.append(_unknown(said, schema))
        return
    if key is not None or not (setting.is_group or setting.is_mapping):
        yield said
        return
    try:
        value = _mapping(setting, said.value)
    except ValueProblem as problem:
        problems.append(f"{_show(said, schema)}: {problem}")
        return
    for inner, item in value.items():
        plain = str(inner).replace("-", "_") if setting.is_group else str(inner)
        child = Statement(f"{said.name}.{plain}", item, f"{said.label}.{inner}", said.origin)
        yield from _expand(child, schema, problems)


def _expand_shortcut(
    said: Statement, shortcut: Mapping[str, Any], schema: Schema, problems: list[str]
) -> Iterator[Statement]:
    try:
        wanted = read_switch(said.value)
    except ValueProblem as problem:
        problems.append(f"{_show(said, schema)}: {problem}")
        return
    for name, value in shortcut.items() if wanted else ():
        label = f"{said.label}: {schema[name].field.short}"
        yield Statement(name, value, label, said.origin)


def _mapping(setting: SettingField, value: Any) -> Mapping[Any, Any]:
    read = {} if value is None else read_text(setting, value)
    if isinstance(read, BaseModel):
        read = {name: getattr(read, name) for name in read.model_fields_set}
    if not isinstance(read, Mapping):
        raise ValueProblem('must be names with values: {"name": value}')
    return read


def _unknown(said: Statement, schema: Schema) -> str:
    group, _, plain = said.name.rpartition(".")
    names = schema.names_in(group)
    near = next((n for n in names if n.endswith(f"_{plain}")), None) or closest(plain, names)
    hint = f" Did you mean {near!r}?" if near else ""
    return f"{said.label}: no such setting.{hint} See `engine serve --help`."


def _validate(statement: Statement, schema: Schema) -> Any:
    setting, key = schema[statement.name]
    return setting.validate(statement.value) if key is None else statement.value


def _contradict(first: Statement, second: Statement, schema: Schema) -> bool:
    if first.value == second.value:
        return False
    try:
        return bool(_validate(first, schema) != _validate(second, schema))
    except ValueProblem:
        return True


def _show(said: Statement, schema: Schema) -> str:
    """Write what was said as `spelling=value`; the value of a secret is left out."""
    field = schema.fields.get(said.name)
    if field is not None and field.is_secret:
        return said.label
    value = said.value
    return f"{said.label}={value if isinstance(value, str) and value else repr(value)}"


def _put(values: dict[str, Any], name: str, value: Any, schema: Schema) -> None:
    setting, key = schema[name]
    *groups, last = setting.name.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    if key is None:
        values[last] = value
    else:
        values.setdefault(last, {})[key] = value


def _given(model: BaseModel, prefix: str) -> Iterator[str]:
    for name in sorted(model.model_fields_set):
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _given(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            yield from (f"{prefix}{name}.{key}" for key in value)
        elif value is not None:
            yield f"{prefix}{name}"
