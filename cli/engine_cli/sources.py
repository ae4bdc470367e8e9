"""Where settings come from: command line, then environment, then a file, then the defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.settings import Layer, Settings, Statement, agree, build, merge
from engine.settings_schema import Schema, SettingField, ValueProblem, read_pair, read_text
from engine.settings_sources import read_environment, read_file
from engine_cli.dotted import Dotted
from engine_cli.options import SHORTCUTS, SettingOption, ShortcutOption, plugin_kind
from engine_cli.state import State

ModelT = TypeVar("ModelT", bound=BaseModel)

MODEL_ARGUMENT = "model_argument"


@dataclass(frozen=True)
class Sources:
    """What each source says, the strongest first."""

    layers: tuple[Layer, ...]

    def settings(self, state: State) -> Settings:
        """Return the engine's settings.

        Raises:
            ConfigError: a value is unusable, or names a plugin that isn't installed.
        """
        settings = merge(self.about(EngineConfig))
        _check_plugin_names(settings, state)
        return settings

    def build(self, model: type[ModelT]) -> tuple[ModelT, dict[str, str]]:
        """Return another model of settings (the server's), and who said each value."""
        return build(model, self.about(model))

    def about(self, model: type[BaseModel]) -> list[Layer]:
        """Keep what is said about one model; the sources may speak of several."""
        schema = Schema.of(model)

        def known(name: str) -> bool:
            return name.partition(".")[0] in schema.fields

        return [
            Layer(
                layer.name,
                {name: value for name, value in layer.values.items() if known(name)},
                layer.spelled,
                layer.origins,
            )
            for layer in self.layers
        ]


def known_settings() -> Schema:
    """Return every setting that a variable or a file may hold, whatever command is run."""
    from engine_server.config import ServerConfig

    return Schema.of(EngineConfig, ServerConfig, shortcuts=SHORTCUTS)


def gather(
    said: Iterable[Statement], environ: Mapping[str, str], file: Path | None, state: State
) -> Sources:
    """Put the sources in order.

    Args:
        said: what the command line says.
        environ: the environment.
        file: the configuration file, if one was named.
        state: receives a line for each variable that is ignored.

    Raises:
        ConfigError: a source is unreadable, misspelt or contradicts itself.
    """
    schema = known_settings()
    command_line = agree("command line", said, schema)
    environment, ignored = read_environment(environ, schema)
    state.notes.extend(ignored)
    layers = [command_line, environment]
    if file is not None:
        layers.append(read_file(file, schema))
    return Sources(tuple(layers))


def command_line_statements(
    context: click.Context, arguments: Sequence[str], dotted: Iterable[Dotted], schema: Schema
) -> Iterator[Statement]:
    """Yield what the parsed flags, the model argument and the dotted flags say.

    Args:
        context: of the command, with its parsed parameters.
        arguments: what was parsed, for how things were spelt.
        dotted: the flags that click doesn't parse.
        schema: the settings that exist.

    Raises:
        ConfigError: the text of a flag has not the form that its type needs.
    """
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if value is None or value == ():
            continue
        if param.name == MODEL_ARGUMENT:
            yield Statement("model", value, "MODEL", "MODEL")
        elif isinstance(param, ShortcutOption):
            yield Statement(param.shortcut, value, param.opts[0], param.opts[0])
        elif isinstance(param, SettingOption):
            yield from _flag_statements(param.field, param.spelling(arguments), value)
    for spelled, name, text in dotted:
        try:
            value = _dotted_value(schema, name, text)
        except ValueProblem as problem:
            raise ConfigError(f"{spelled}={text}: {problem}") from None
        yield Statement(name, value, spelled, spelled)


def _flag_statements(field: SettingField, flag: str, value: Any) -> Iterator[Statement]:
    if field.is_flag:
        flag = flag if value else f"--no-{flag.removeprefix('--')}"
        yield Statement(field.name, value, flag, flag)
        return
    if field.is_list:
        items = [item for text in value for item in _read(field, flag, text)]
        yield Statement(field.name, items, flag, flag)
        return
    for text in value:
        if field.is_mapping and not text.lstrip().startswith("{"):
            try:
                key, item = read_pair(text)
            except ValueProblem as problem:
                raise ConfigError(f"{flag}={text}: {problem}") from None
            yield Statement(f"{field.name}.{key}", item, f"{flag} {key}", flag)
        else:
            yield Statement(field.name, text, flag, flag)


def _read(field: SettingField, flag: str, text: str) -> list[Any]:
    try:
        read = read_text(field, text)
    except ValueProblem as problem:
        raise ConfigError(f"{flag}={text}: {problem}") from None
    return read if isinstance(read, list) else [read]


def _dotted_value(schema: Schema, name: str, text: str) -> Any:
    """Read the text of a dotted flag: a key's value is YAML, a field's is what the field wants."""
    try:
        key = schema[name].key
    except KeyError:
        return text  # refused with a suggestion when the statements are put together
    if key is not None:
        return read_pair(f"{key}={text}")[1]
    return text


def _check_plugin_names(settings: Settings, state: State) -> None:
    """Refuse a name that isn't installed before a model is opened for it.

    Raises:
        ConfigError: names the flag, the nearest name and what is installed.
    """
    from engine.errors import DuplicatePluginError, UnknownPluginError

    for field in Schema.of(EngineConfig).fields.values():
        kind = plugin_kind(field)
        if kind is None or (origin := settings.origins.get(field.name)) is None:
            continue
        value: Any = settings.config
        for part in field.name.split("."):
            value = getattr(value, part)
        for name in value if field.is_list else [value]:
            if name == "auto":
                continue
            try:
                state.registry.find(kind, str(name))
            except (UnknownPluginError, DuplicatePluginError) as error:
                raise ConfigError(f"{origin}={name}: {error}") from error
