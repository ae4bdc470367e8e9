"""`engine run-batch`: a file of requests in, a file of answers out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import State
from engine_server.batch_file import AnswerFile, read_requests
from engine_server.config import ServerConfig

_FILE = click.Path(path_type=Path, dir_okay=False)


@settings_command(
    "run-batch",
    examples=(
        "engine run-batch ./model -i requests.jsonl -o answers.jsonl",
        "engine run-batch ./model -i in.jsonl -o out.jsonl --served-as gpt-4o --at-once 64",
    ),
    params=[
        click.Option(["-i", "--input", "source"], type=_FILE, required=True, help="Requests."),
        click.Option(
            ["-o", "--output", "target"],
            type=_FILE,
            required=True,
            help="Answers; what is in it already is not answered again.",
        ),
        click.Option(
            ["--served-as"],
            multiple=True,
            metavar="NAME",
            help="A name of the model in the requests, its own by default; may be repeated.",
        ),
        click.Option(
            ["--at-once"],
            type=click.IntRange(min=1),
            default=256,
            show_default=True,
            help="Requests in work at the same time.",
        ),
        verbose_option(),
    ],
)
@click.pass_obj
def run_batch(
    state: State,
    /,
    sources: Sources,
    source: Path,
    target: Path,
    served_as: tuple[str, ...],
    at_once: int,
    verbose: bool,
) -> int:
    """Answer a batch file in OpenAI's form: one request per line, one answer per line.

    Each answer is what `engine serve` would give, status and error included. After an interrupt
    the same command goes on where it stopped. Exits with 1 when an answer is an error.
    """
    settings = sources.settings(state)
    state.tell_notes()
    requests = read_requests(source)
    server = ServerConfig(served_model_name=served_as)
    answers = AnswerFile(target)
    left = sum(request.custom_id not in answers.done for request in requests)
    click.echo(f"{left} of {len(requests)} requests to answer", err=True)
    if not left:
        return 0
    from engine_server.batch import run_batch as answer

    try:
        with StartupProgress(sys.stderr, verbose=verbose) as progress, _bar(left) as advance:

            def step() -> None:
                progress.stop()
                advance()

            asyncio.run(
                answer(
                    settings,
                    server,
                    requests,
                    answers,
                    at_once=at_once,
                    on_event=progress,
                    on_answer=step,
                )
            )
    except KeyboardInterrupt:
        done = sum(request.custom_id in answers.done for request in requests)
        click.echo(f"{done} of {len(requests)} answered; the same command goes on", err=True)
        raise
    finally:
        answers.close()
    return int(answers.failed > 0)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    """Yield what is called after each answer; it draws on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bars = Progress(console=Console(file=sys.stderr))
    task = bars.add_task("answers", total=total)

    def advance() -> None:
        bars.start()  # only now, so that the bars of the start-up are gone
        bars.advance(task)

    try:
        yield advance
    finally:
        bars.stop()
