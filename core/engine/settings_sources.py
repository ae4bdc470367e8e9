"""Reads the environment and configuration files into layers of settings."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.settings import Layer, Statement, agree
from engine.settings_schema import Schema

PREFIX = "ENGINE_"
NOT_SETTINGS = frozenset(
    {"ENGINE_BLOCK_PLUGINS", "ENGINE_CONFIG", "ENGINE_DEBUG", "ENGINE_PLUGIN_FILES"}
)
"""Variables that are read elsewhere: by the plugin registry and by the command line."""


def read_environment(environ: Mapping[str, str], schema: Schema) -> tuple[Layer, list[str]]:
    """Read `ENGINE_<NAME>` for every setting; an empty variable counts as unset.

    Returns:
        The layer, and a line for each variable that was ignored.

    Raises:
        ConfigError: a variable looks like a misspelt setting.
    """
    names = {f"{PREFIX}{name.upper()}": name for name in schema.shortcuts}
    names |= {field.variable: name for name, field in schema.fields.items()}
    values: dict[str, str] = {}
    ignored: list[str] = []
    problems: list[str] = []
    for variable in sorted(v for v in environ if v.startswith(PREFIX) and environ[v]):
        if variable in NOT_SETTINGS:
            continue
        if _is_service_link(variable, environ[variable]):
            ignored.append(
                f"{variable}={environ[variable]} is ignored: it describes a Kubernetes service "
                "named engine; set enableServiceLinks: false, or rename the service"
            )
        elif variable in names:
            values[variable] = environ[variable]
        elif near := difflib.get_close_matches(variable, names, n=1, cutoff=0.85):
            problems.append(f"{variable}: no such setting. Did you mean {near[0]}?")
        else:
            ignored.append(f"{variable} is ignored: no setting has that name")
    if problems:
        raise ConfigError("\n".join(problems))
    statements = [Statement(names[v], value, v, v) for v, value in values.items()]
    return agree("environment", statements, schema), ignored


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes made the variable for a service that is called `engine`."""
    return value.startswith("tcp://") or variable.startswith(("ENGINE_SERVICE_", "ENGINE_PORT_"))


def read_file(path: Path, schema: Schema) -> Layer:
    """Read a YAML, TOML or JSON file of settings.

    Keys are nested or flat (`compilation_config.mode`), short (`cudagraph_mode`), with hyphens or
    underscores.

    Raises:
        ConfigError: the file can't be read, or names something unknown or twice differently.
    """
    statements = [
        Statement(schema.dotted(str(key)), value, f"{path.name}: {key}", path.name)
        for key, value in _parse(path).items()
    ]
    return agree(path.name, statements, schema)


def _parse(path: Path) -> Mapping[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not a text file in UTF-8") from None
    match path.suffix.lower():
        case ".toml":
            content = _parse_toml(path, text)
        case ".yaml" | ".yml" | ".json":
            content = _parse_yaml(path, text)
        case _:
            raise ConfigError(f"{path}: must end in .yaml, .yml, .toml or .json")
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: must hold names with values, like `dtype: float32`")
    return content


def _parse_toml(path: Path, text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _parse_yaml(path: Path, text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is given twice; YAML's own rule is to take the last silently."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if isinstance(key, Hashable) and keys.count(key) > 1:
                    line = node.start_mark.line + 1
                    raise ConfigError(f"{path}: {key!r} is given twice in the block at line {line}")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        reason = getattr(error, "problem", None) or "unreadable"
        raise ConfigError(f"{path}: is not YAML: {reason}{where}") from None
