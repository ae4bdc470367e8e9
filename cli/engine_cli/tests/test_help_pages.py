"""Help is short unless more is asked for, and its examples can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from engine_cli.command_tree import Node, enter, walk
from engine_cli.help_sections import COMMON, WORDS
from engine_cli.main import COMMANDS, cli
from engine_cli.sources import known_settings

Engine = Callable[..., Any]


def nodes() -> list[Node]:
    return list(walk(cli, enter(cli, "engine")))


NODES = [node for node in nodes() if node.path]
NAMES = [" ".join(node.path) for node in NODES]


def examples(node: Node) -> list[str]:
    _, _, listed = (node.command.help or "").partition("Examples:\n")
    return [line.strip() for line in listed.splitlines() if line.strip()]


@pytest.mark.parametrize("node", NODES, ids=NAMES)
def test_every_command_shows_examples_that_can_be_typed(node: Node, engine: Engine) -> None:
    lines = examples(node)
    assert lines, "give its help examples: engine_cli.examples.with_examples"
    for line in lines:
        words = shlex.split(line.partition(" >")[0])
        assert words[0] == "engine"
        command: click.Command = cli
        context = enter(cli, "engine")
        rest = words[1:]
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            child = command.get_command(context, name)
            assert child is not None, line
            command, context = child, enter(child, name, context)
        if any(word.startswith("--help") for word in rest):
            assert engine(*words[1:]).code == 0
        else:
            command.parse_args(context, rest)


@pytest.mark.parametrize("node", NODES, ids=NAMES)
def test_every_page_ends_with_0_and_shows_its_examples(node: Node, engine: Engine) -> None:
    page = engine(*node.path, "--help")
    assert page.code == 0
    assert "Examples:" in page.out


def test_the_short_help_has_the_common_settings_and_names_the_sections(engine: Engine) -> None:
    page = engine("serve", "--help").out
    assert "--cudagraph-mode" in page
    assert "--num-kv-blocks" not in page
    for word in (*WORDS, "all"):
        if word != "options":
            assert f"--help={word}" in page
    assert len(page.splitlines()) < 90


def test_what_is_common_exists() -> None:
    assert set(known_settings().fields) >= COMMON


def test_all_is_every_option(engine: Engine) -> None:
    page = engine("serve", "--help=all").out
    for field in known_settings().fields.values():
        assert re.search(rf"{field.flag}\b", page), field.name


@pytest.mark.parametrize(
    ("word", "shown", "hidden"),
    [
        ("memory", "--num-kv-blocks", "--uds"),
        ("server", "--port", "--num-kv-blocks"),
        ("compile", "--compile-sizes", "--uds"),
        ("cudagraph", "--cudagraph-capture-sizes", "--uds"),
    ],
)
def test_a_section_or_any_word_is_shown_alone(
    engine: Engine, word: str, shown: str, hidden: str
) -> None:
    page = engine("serve", f"--help={word}").out
    assert f"{shown} " in page
    assert f"{hidden} " not in page


def test_an_unknown_word_is_refused_with_the_sections(engine: Engine) -> None:
    outcome = engine("serve", "--help=memroy")
    assert outcome.code == 2
    assert "no option is about 'memroy'. Did you mean --help=memory?" in outcome.err
    assert "The sections are model, compile, device, memory, server, all." in outcome.err


def test_a_command_without_a_server_has_no_section_for_it(engine: Engine) -> None:
    assert "--help=server" not in engine("generate", "--help").out


def test_the_page_about_the_command_line_lists_every_command() -> None:
    page = (Path(__file__).parents[3] / "docs/cli.md").read_text()
    for name in COMMANDS:
        assert f"| `engine {name}` |" in page, name
