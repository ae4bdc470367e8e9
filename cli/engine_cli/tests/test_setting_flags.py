"""Every setting is a flag, said once or in agreement, and stronger than the other sources."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from engine.config import CompilationConfig, EngineConfig
from engine.errors import ConfigError
from engine.settings import merge
from engine.settings_schema import Schema, SettingField
from engine_cli.options import (
    ELSEWHERE,
    SECTIONS,
    SHORTCUTS,
    SettingOption,
    plugin_kind,
    section_of,
)
from engine_cli.settings_command import SettingsCommand
from engine_cli.sources import Sources, known_settings
from engine_server.config import ServerConfig

Parse = Callable[..., Sources]
MODELS = (EngineConfig, ServerConfig)
SCHEMA = Schema.of(*MODELS)
NAMES = list(SCHEMA.fields)


def example(field: SettingField) -> Any:
    if field.is_group:
        return {"capture": "lazy"}
    if field.is_mapping:
        return {f"key{random.randrange(99)}": random.randrange(99)}
    if field.is_flag:
        return not field.default
    if field.choices:
        return random.choice([c for c in field.choices if c != str(field.default)])
    if field.name == "optimization_level":
        return random.choice([0, 1, 3])
    if field.name == "root_path":
        return f"/prefix{random.randrange(99)}"
    if field.is_list:
        return [3, 7] if "int" in str(field.type) else ["+some::op", "-other"]
    if field.type in (int, float):
        return random.randrange(300, 400) if field.type is int else 0.25
    return f"name_{random.randrange(99)}"


def flags(field: SettingField, value: Any) -> list[str]:
    """One way to write the value, chosen at random among those that the help offers."""
    flag = random.choice([field.flag, field.flag[:2] + field.flag[2:].replace("-", "_")])
    if field.is_flag:
        return [flag if value else f"--no-{flag[2:]}"]
    if field.is_mapping:
        ((key, item),) = value.items()
        forms = [[flag, f"{key}={item}"], [flag, json.dumps(value)], [f"{flag}.{key}={item}"]]
        return random.choice([*forms, [f"{flag}.{key}", str(item)]])
    text = ",".join(map(str, value)) if isinstance(value, list) else json.dumps(value)
    text = value if isinstance(value, str) else text
    return random.choice([[flag, text], [f"{flag}={text}"]])


def read(sources: Sources, name: str) -> tuple[Any, dict[str, str]]:
    """The value of one setting, and who said each value of the model that has it."""
    owner = next(m for m in MODELS if name.partition(".")[0] in m.model_fields)
    value, origins = sources.build(owner)
    for part in name.split("."):
        value = getattr(value, part)
    return value, origins


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_a_flag(sources: Parse, name: str) -> None:
    field = SCHEMA.fields[name]
    value = example(field)
    got, origins = read(sources(*flags(field, value), models=MODELS), name)
    wanted = CompilationConfig(**value) if field.is_group else field.validate(value)
    assert got == wanted != field.default
    assert all(origin.startswith("--") for origin in origins.values())
    assert len(origins) == 1


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("compilation_config.")])
def test_every_compilation_field_has_a_dotted_flag(sources: Parse, name: str) -> None:
    field = SCHEMA.fields[name]
    value = example(field)
    text = value if isinstance(value, str) else json.dumps(value)
    tail = random.choice([name, name.replace("_", "-")]).partition(".")[2]
    head = random.choice(["-cc", "--compilation-config", "--compilation_config"])
    arguments = random.choice([[f"{head}.{tail}={text}"], [f"{head}.{tail}", text]])
    assert read(sources(*arguments), name)[0] == field.validate(value)


@pytest.mark.parametrize("name", [n for n in NAMES if not SCHEMA.fields[n].is_group])
def test_every_field_prefers_flag_to_variable_to_file(
    sources: Parse, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = SCHEMA.fields[name]
    flag, variable, file = example(field), example(field), example(field)
    path = tmp_path / "engine.yaml"
    path.write_text(json.dumps({name: file}))
    monkeypatch.setenv("ENGINE_CONFIG", str(path))
    got, origins = read(sources(), name)
    assert set(origins.values()) == {"engine.yaml"}
    text = variable if isinstance(variable, str) else json.dumps(variable)
    monkeypatch.setenv(field.variable, text)
    got, origins = read(sources(), name)
    if field.is_mapping:
        assert got == {**file, **variable}
        return
    assert set(origins.values()) == {field.variable}
    assert got == field.validate(variable)
    got, origins = read(sources(*flags(field, flag), models=MODELS), name)
    assert got == field.validate(flag)
    assert not set(origins.values()) & {field.variable, "engine.yaml"}


def test_every_field_stands_in_a_section_of_the_help_with_its_documentation() -> None:
    command = SettingsCommand("probe", callback=lambda: None, models=MODELS)
    context = click.Context(command)
    options = {p.field.name: p for p in command.params if isinstance(p, SettingOption)}
    for name, field in SCHEMA.fields.items():
        _, text = options[name].get_help_record(context)
        assert field.help, f"{name} has no documentation"
        assert field.help in text
        assert f"[env: {field.variable}" in text
        servers = name.partition(".")[0] in ServerConfig.model_fields
        assert (section_of(name) == ELSEWHERE) == servers, f"{name} belongs in options.SECTIONS"
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted({*EngineConfig.model_fields, *SHORTCUTS})


def test_every_kind_of_plugin_that_a_field_names_exists() -> None:
    from engine.registry import Registry

    kinds = {kind for field in SCHEMA.fields.values() if (kind := plugin_kind(field))}
    assert kinds <= set(Registry().kinds())
    assert {"compile_modes", "cudagraph_modes", "backends", "attention"} <= kinds


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--dtype", "float32", "--dtype", "float16"], ["--dtype=float32", "--dtype=float16"]),
        (["folder", "--model", "other"], ["MODEL=folder", "--model=other"]),
        (["folder", "-m", "other"], ["MODEL=folder", "-m=other"]),
        (["--compilation-mode", "a", "-cc.mode=b"], ["--compilation-mode=a", "-cc.mode=b"]),
        (["--enforce-eager", "-cc.mode=b"], ["--enforce-eager: compilation_mode", "-cc.mode=b"]),
        (
            ["--enforce-eager", "--cudagraph-mode=b"],
            ["--enforce-eager: cudagraph_mode=none", "--cudagraph-mode=b"],
        ),
        (
            ["--compilation-config", '{"mode": "a"}', "--compilation-mode", "b"],
            ["--compilation-config.mode=a", "--compilation-mode=b"],
        ),
        (["-O0", "--optimization-level", "1"], ["=0", "=1"]),
        (
            ["--backend-options", "k=1", "-cc.backend_options.k=2"],
            ["--backend-options k=1", "-cc.backend_options.k=2"],
        ),
        (["--passes", "+a", "-cc.passes=-a"], ["--passes=", "-cc.passes=-a"]),
        (["--debug-graphs", "-cc.debug_graphs=false"], ["--debug-graphs=", "-cc.debug_graphs="]),
    ],
)
def test_a_setting_said_twice_differently_is_an_error_naming_both(
    sources: Parse, arguments: list[str], names: list[str]
) -> None:
    with pytest.raises(ConfigError, match="contradict each other") as error:
        sources(*arguments)
    for name in names:
        assert name in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["folder", "--model", "folder"],
        ["--max-model-len", "32k", "--max_model_len=32000"],
        ["--compilation-mode", "NONE", "--enforce-eager", "-cc.mode=none"],
        ["--cudagraph-capture-sizes", "1,2", "-cc.cudagraph_capture_sizes=[1, 2]"],
        ["--enable-prefix-caching", "--enable-prefix-caching"],
    ],
)
def test_a_setting_said_twice_alike_is_no_error(sources: Parse, arguments: list[str]) -> None:
    merge(sources(*arguments).layers)


def test_both_forms_of_a_switch_contradict_each_other(sources: Parse) -> None:
    with pytest.raises(click.UsageError, match=r"--debug-graphs and --no-debug-graphs contradict"):
        sources("--debug-graphs", "--no_debug_graphs")


@pytest.mark.parametrize("spelling", [["-O3"], ["-O", "3"], ["--optimization-level=3"]])
def test_the_optimisation_level_has_a_short_form(sources: Parse, spelling: list[str]) -> None:
    settings = merge(sources(*spelling).layers)
    assert settings.config.optimization_level == 3
    wanted = "-O" if spelling[0].startswith("-O") else "--optimization-level"
    assert settings.origins == {"optimization_level": wanted}


def test_enforce_eager_is_explicit_and_remembered_by_its_name(
    sources: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"compilation_config.mode", "compilation_config.cudagraph_mode"}
    settings = merge(sources("--enforce-eager").layers)
    assert settings.origins == dict.fromkeys(wanted, "--enforce-eager")
    assert settings.config.compilation_config.mode == "none"
    assert settings.config.compilation_config.cudagraph_mode == "none"
    path = tmp_path / "engine.toml"
    path.write_text("enforce-eager = true\n")
    settings = merge(sources("--config", str(path)).layers)
    assert settings.origins == dict.fromkeys(wanted, "engine.toml")
    monkeypatch.setenv("ENGINE_ENFORCE_EAGER", "1")
    settings = merge(sources("--cudagraph-mode", "other").layers)
    assert settings.origins == {
        "compilation_config.mode": "ENGINE_ENFORCE_EAGER",
        "compilation_config.cudagraph_mode": "--cudagraph-mode",
    }


def test_options_are_yaml_scalars_and_add_up(sources: Parse) -> None:
    config = merge(
        sources(
            "--backend-options", "a=1",
            "--backend-options", "b=true",
            "--backend_options.c=[1, x]",
            "-cc.backend_options.d-e", "text",
        ).layers
    ).config.compilation_config  # fmt: skip
    assert config.backend_options == {"a": 1, "b": True, "c": [1, "x"], "d-e": "text"}


def test_repeated_list_flags_add_up(sources: Parse) -> None:
    config = merge(sources("--passes", "+a", "--passes=-b,+c").layers).config
    assert config.compilation_config.passes == ("+a", "-b", "+c")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend-options", "k"], "--backend-options=k: must be key=value"),
        (["--backend-options", "k=[1"], "--backend-options=k=\\[1: must be JSON or YAML"),
        (["-cc.backend_options.k=[1"], "-cc.backend_options.k=\\[1: must be JSON or YAML"),
        (["-cc.moed", "x"], "-cc.moed: no such setting. Did you mean 'mode'"),
        (["--compilation-config", "[1"], "--compilation-config=\\[1: must be JSON or YAML"),
        (["--cudagraph-capture-sizes", "[1"], "--cudagraph-capture-sizes=\\[1: must be JSON"),
    ],
)
def test_unreadable_flags_are_named_with_what_is_wrong(
    sources: Parse, arguments: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        sources(*arguments)


def test_a_dotted_flag_without_a_value_is_a_usage_error(sources: Parse) -> None:
    with pytest.raises(click.UsageError, match=r"-cc.mode needs a value"):
        sources("-cc.mode")


def test_what_follows_two_dashes_is_not_a_flag(sources: Parse) -> None:
    assert merge(sources("--", "-cc.mode=x").layers).config == EngineConfig(model="-cc.mode=x")


def test_a_name_that_is_not_installed_is_refused_with_its_flag(sources: Parse) -> None:
    from engine_cli.state import State

    with pytest.raises(ConfigError, match=r"^--cudagraph-mode=nnone: .*Did you mean 'none'\?"):
        sources("--cudagraph-mode", "nnone").settings(State())
    with pytest.raises(ConfigError, match=r"^--load-format=gguff: .*Did you mean 'gguf'\?"):
        sources("--load-format", "gguff").settings(State())
    sources("--attention", "auto", "--backend", "EAGER").settings(State())


def test_settings_of_the_server_may_stand_in_a_file_for_every_command(
    sources: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("port: 1234\nseed: 5\n")
    monkeypatch.setenv("ENGINE_HOST", "::1")
    said = sources("--config", str(path))
    assert merge(said.about(EngineConfig)).config == EngineConfig(seed=5)
    server, origins = said.build(ServerConfig)
    assert (server.host, server.port) == ("::1", 1234)
    assert origins == {"host": "ENGINE_HOST", "port": "engine.yaml"}


def test_engine_and_server_settings_share_no_name() -> None:
    assert known_settings().fields.keys() == SCHEMA.fields.keys()
