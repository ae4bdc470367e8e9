"""The `engine` command: finds the subcommand, and turns errors into sentences and exit codes.

Exit codes: 0 done, 2 something the user can correct, 130 interrupted, 1 anything else.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from engine.errors import BrokenPluginError, EngineError
from engine.plugin_files import VARIABLE as PLUGIN_FILES
from engine_cli.examples import with_examples
from engine_cli.lazy_group import Entry, LazyGroup
from engine_cli.state import State, command_settings, debug_option

COMMANDS = {
    "serve": Entry("engine_cli.serve:serve", "Serve a model over an OpenAI-compatible HTTP API."),
    "generate": Entry("engine_cli.generate:generate", "Continue prompts and print the results."),
    "chat": Entry("engine_cli.chat:chat", "Talk to a model, here or on a server."),
    "complete": Entry("engine_cli.complete:complete", "Continue one prompt as it comes."),
    "run-batch": Entry("engine_cli.run_batch:run_batch", "Answer a file of requests."),
    "explain": Entry("engine_cli.explain:explain", "Show the settings in force, and why."),
    "doctor": Entry("engine_cli.doctor:doctor", "Check this machine before a start."),
    "verify": Entry("engine_cli.verify:verify", "Compare modes with everything off."),
    "bisect": Entry("engine_cli.bisect:bisect", "Name the part of the modes that is wrong."),
    "bench": Entry("engine_cli.bench:bench", "Measure an engine, its modes, or any server."),
    "compile": Entry("engine_cli.compile:compile_command", "Compile a model for other machines."),
    "profile": Entry("engine_cli.profile:profile", "Show where the time of a step goes."),
    "config": Entry("engine_cli.config:config", "Show each setting and who said it."),
    "completions": Entry("engine_cli.completions:completions", "Print a shell completion script."),
    "cache": Entry("engine_cli.cache:cache", "Look at and move compiled artifacts."),
    "plugins": Entry("engine_cli.plugins:plugins", "List the installed plugins."),
}


def _show_version(context: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from engine_cli.version import version_lines

        click.echo("\n".join(version_lines()))
        context.exit()


cli = LazyGroup(
    name="engine",
    entries=COMMANDS,
    context_settings=command_settings(),
    help=with_examples(
        "Run large language models with pluggable compile modes, graph modes and backends.",
        "engine serve",
        "engine chat ./model",
        "engine explain ./model --cudagraph-mode full",
    ),
    epilog="`engine COMMAND --help` shows a command's options.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the versions of engine and what it stands on, and exit.",
        ),
        debug_option(),
    ],
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: the arguments; those of the process when omitted.

    Returns:
        The exit code.
    """
    # Models are local; transformers must not look a name up on a hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    state, files = State(), os.environ.get(PLUGIN_FILES)
    try:
        code = cli.main(args, prog_name="engine", obj=state, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return 2
    except EngineError as error:
        return _tell(error, debug=state.debug)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        return _reader_left()
    finally:
        # `--plugin` is for one run.
        os.environ.pop(PLUGIN_FILES, None)
        if files is not None:
            os.environ[PLUGIN_FILES] = files
    return code if isinstance(code, int) else 0


def _tell(error: EngineError, *, debug: bool) -> int:
    """Print an expected error; a broken plugin's author needs the traceback too."""
    if debug:
        traceback.print_exception(error)
    elif isinstance(error, BrokenPluginError):
        click.echo(_cause(error), nl=False, err=True)
    for line in str(error).splitlines():
        click.echo(f"engine: {line}", err=True)
    return 2


def _cause(error: BrokenPluginError) -> str:
    """Return the traceback of what the plugin raised; empty when the engine found the fault."""
    if error.__cause__ is not None:
        return "".join(traceback.format_exception(error.__cause__))
    # From the engine process only text arrives: the chain, in a note.
    notes: list[str] = getattr(error, "__notes__", [])
    return "".join(note for note in notes if note.count("Traceback (most recent") > 1)


def _reader_left() -> int:
    """Leave quietly when whoever read our output (`| head`) has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
