"""The command that a matrix recommends asks for what was measured."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from engine import EngineConfig, Settings
from engine.plugin_files import VARIABLE
from engine.settings import Layer, Statement, agree, merge
from engine.settings_schema import Schema
from engine_cli.settings_command import SettingsCommand
from engine_cli.sources import Sources
from engine_cli.state import State
from engine_tools.bench.command_line import AXES, command_line, said_elsewhere
from engine_tools.verify import Combination

CHOSEN = Combination("vllm_compile", "piecewise", "eager")


def parsed(*arguments: str) -> Settings:
    """Parse flags as every command with settings does."""
    seen: list[Sources] = []
    command = SettingsCommand("probe", callback=lambda sources: seen.append(sources))
    command.main(list(arguments), standalone_mode=False, obj=State())
    return merge(seen[0].about(EngineConfig))


@pytest.mark.parametrize(
    "flags",
    [
        ("MODEL", "--dtype", "float32", "--threads", "1"),
        ("--model", "a folder", "--no-enable-prefix-caching"),
        ("MODEL", "--compilation-config", '{"cudagraph_capture_sizes": [1, 2]}'),
        ("MODEL", "--hf-overrides", "rope_theta=10000", "--hf-overrides", 'kind="x"'),
        ("MODEL", "-cc.cudagraph_capture_sizes", "1,2", "--max-model-len", "8k"),
        ("MODEL", "--backend-options", "level=2"),
    ],
)
def test_the_recommended_command_gives_the_settings_that_were_measured(
    flags: tuple[str, ...],
) -> None:
    given = parsed(*flags)
    engine, serve, *words = shlex.split(command_line(CHOSEN, given))
    assert (engine, serve) == ("engine", "serve")
    assert parsed(*words).config == CHOSEN.within(given).config


def test_the_recommended_command_names_the_plugin_files_in_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    monkeypatch.setenv(VARIABLE, str(file))
    words = shlex.split(command_line(CHOSEN, parsed("MODEL")))
    assert words[words.index("--plugin") + 1] == str(file)


def test_the_recommended_command_leaves_out_what_a_variable_says() -> None:
    schema = Schema.of(EngineConfig)
    said = agree("environment", [Statement("seed", "3", "ENGINE_SEED", "ENGINE_SEED")], schema)
    settings = merge([Layer("command line", {"model": "M"}, {"model": "MODEL"}), said])
    assert said_elsewhere(settings) == ["ENGINE_SEED"]
    line = command_line(CHOSEN, settings)
    assert line.split()[2:] == [
        "--model",
        "M",
        *(word for pair in zip(AXES.values(), CHOSEN, strict=True) for word in pair),
    ]
