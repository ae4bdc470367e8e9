"""Errors become sentences and exit codes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import click
import pytest

from engine.errors import ConfigError
from engine_cli import main as main_module

Engine = Callable[..., Any]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `engine explode` raise an error."""

    def arrange(error: BaseException) -> None:
        def explode() -> None:
            raise error

        command = click.Command("explode", callback=explode)
        monkeypatch.setattr(main_module.cli, "get_command", lambda *_: command)
        monkeypatch.setattr(main_module.cli, "list_commands", lambda _: ["explode"])

    return arrange


def test_versions_come_from_the_metadata_of_what_is_installed(engine: Engine) -> None:
    outcome = engine("--version")
    assert outcome.code == 0
    lines = dict(line.split(" ", 1) for line in outcome.out.splitlines())
    assert lines["engine"] == metadata.version("modular-engine")
    assert lines["python"] == platform.python_version()
    assert lines["torch"] == metadata.version("torch")
    assert lines["transformers"] == metadata.version("transformers")
    assert "triton" in lines


def test_help_lists_every_command_with_its_summary(engine: Engine) -> None:
    outcome = engine("--help")
    assert outcome.code == 0
    for name, entry in main_module.COMMANDS.items():
        assert f"  {name}" in outcome.out
        assert entry.summary in outcome.out


@pytest.mark.parametrize("name", main_module.COMMANDS)
def test_every_command_is_found_and_has_help(engine: Engine, name: str) -> None:
    outcome = engine(name, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: engine {name}")
    assert outcome.out == engine(name, "-h").out


def test_an_expected_error_is_one_line_without_a_traceback(
    engine: Engine, failing: Callable[[BaseException], None]
) -> None:
    failing(ConfigError("dtype='x': choose float32"))
    outcome = engine("explode")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "engine: dtype='x': choose float32\n"


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_debug_shows_the_traceback_too(
    engine: Engine,
    failing: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    failing(ConfigError("a sentence"))
    if how == "variable":
        monkeypatch.setenv("ENGINE_DEBUG", "1")
    outcome = engine(*(["--debug"] if how == "flag" else []), "explode")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert outcome.err.endswith("engine: a sentence\n")


def test_an_interrupt_ends_with_130(
    engine: Engine, failing: Callable[[BaseException], None]
) -> None:
    failing(KeyboardInterrupt())
    outcome = engine("explode")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


def test_a_fault_of_ours_is_not_hidden(
    engine: Engine, failing: Callable[[BaseException], None]
) -> None:
    failing(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        engine("explode")


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    code = "import sys; from engine_cli.main import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


def test_nothing_is_looked_up_on_a_hub() -> None:
    code = (
        "import os; os.environ.pop('HF_HUB_OFFLINE', None)\n"
        "from engine_cli.main import main; main(['--version'])\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '1'\n"
        "os.environ['HF_HUB_OFFLINE'] = '0'; main(['--version'])\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '0'"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explian"], "no such command 'explian'. Did you mean 'explain'?"),
        (["zzz"], "no such command 'zzz'."),
        (["--versoin"], "No such option '--versoin'"),
        (["explain", "--max-model-length", "4"], "Did you mean"),
        (["explain", "a", "b"], "unexpected extra argument"),
        (["explain", "--on-downgrade", "wran"], "must be error or warn. Did you mean 'warn'?"),
        (["explain", "--help=zzz"], "no option is about 'zzz'"),
    ],
)
def test_a_misspelling_is_answered_with_a_suggestion(
    engine: Engine, arguments: list[str], says: str
) -> None:
    outcome = engine(*arguments)
    assert outcome.code == 2
    assert says in outcome.err
    assert "Traceback" not in outcome.err


def test_help_about_a_word_shows_only_the_options_that_begin_a_word_with_it(
    engine: Engine,
) -> None:
    everything = engine("serve", "--help=all").out
    for word in ("--cudagraph", "CUDAGRAPH", "cudagraph"):
        some = engine("serve", f"--help={word}").out
        assert "--cudagraph-mode" in some
        assert "--num-kv-blocks" not in some
        assert len(some) < len(everything) / 2
    section = engine("serve", "--help=server").out
    assert "--port" in section
    assert "--observers" not in section


def test_installed_names_are_in_the_help_without_an_import(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "compile_modes", "odd_mode", "raise RuntimeError('imported')")
    outcome = engine("explain", "--help=compilation-mode")
    names = " ".join(outcome.out.split()).partition("Installed: ")[2]
    assert {"none", "odd_mode"} <= {name.strip(" .") for name in names.split(",")}


COMMAND = """
import click
from engine.hookspecs import hookimpl
ENGINE_API_VERSION = 1

@hookimpl
def engine_register_command():
    return click.Command("greet", callback=lambda: click.echo("hello"))
"""


def test_a_command_of_another_distribution_is_listed_unimported_and_runs(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "commands", "greet", COMMAND)
    outcome = engine("--help")
    assert "greet  from stranger 1.5" in outcome.out
    assert "stranger_module" not in sys.modules
    assert engine("greet").out == "hello\n"
    assert "Did you mean 'greet'?" in engine("gret").err


def test_a_broken_command_is_one_line_and_disturbs_no_other(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "commands", "greet", "raise OSError('no such device')")
    assert engine("--version").code == 0
    assert "greet" in engine("--help").out
    outcome = engine("greet")
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert "OSError: no such device" in outcome.err
    assert "stranger 1.5" in outcome.err
    assert "Traceback" in engine("--debug", "greet").err


def test_a_command_can_not_replace_one_of_ours(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "commands", "explain", "raise OSError('imported')")
    assert "not reachable" in engine("--help").out
    assert engine("explain", "--help").code == 0


def test_what_registers_no_command_is_a_sentence(
    engine: Engine, install: Callable[..., None]
) -> None:
    source = COMMAND[: COMMAND.index("return click")] + "return print"
    install("stranger", "commands", "greet", source)
    outcome = engine("greet")
    assert outcome.code == 2
    assert "its hook must return a click command" in outcome.err
