"""`engine chat`: a conversation in the terminal, with a model here or on a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

import click

from engine.errors import RequestError
from engine.sampling_params import SamplingParams
from engine.settings import Settings
from engine_cli.options import verbose_option
from engine_cli.sampling_options import sampling_options, take_sampling_params
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import state_of

Message = dict[str, str]
Answer = Callable[[list[Message]], Iterator[str]]
"""From a conversation to the pieces of the next message, as they come."""

_DEFAULTS: dict[str, Any] = {"max_tokens": None}
"""An answer ends when the model ends it."""
_NOT_FOR_CHAT = ("n", "logprobs", "prompt_logprobs")
"""A conversation goes on with one answer, as text."""
_HELP = "/reset forgets the conversation, /exit (or Ctrl-D) leaves; Ctrl-C stops an answer."


@settings_command(
    "chat",
    examples=(
        "engine chat",
        "engine chat ./model --question 'What is a CUDA graph?'",
        "engine chat --url http://127.0.0.1:8000/v1",
    ),
    params=[
        click.Option(["-q", "--question"], help="Ask this, print the answer, and leave."),
        click.Option(["--system"], help="A system message to begin with."),
        click.Option(["--url"], help="Talk to the server at this address instead."),
        click.Option(
            ["--api-key"], envvar="ENGINE_API_KEY", help="For --url. [env: ENGINE_API_KEY]"
        ),
        *sampling_options(without=_NOT_FOR_CHAT, **_DEFAULTS),
        verbose_option(),
    ],
)
@click.pass_context
def chat(context: click.Context, /, sources: Sources, **options: Any) -> None:
    """Talk to MODEL.

    With --url the model runs on that server and MODEL, if given, is the name it serves.
    """
    state = state_of(context)
    params = take_sampling_params(context, **_DEFAULTS)
    state.tell_notes()
    question = options["question"]
    if options["url"] is not None:
        served_name = _only_model(context, sources)
        answering = _remote(options["url"], served_name, options["api_key"], params)
    else:
        quiet = question is not None and not options["verbose"]
        settings = sources.settings(state)
        answering = _local(settings, params, quiet=quiet, verbose=options["verbose"])
    with answering as answer:
        history = [{"role": "system", "content": options["system"]}] if options["system"] else []
        if question is not None:
            _say(answer([*history, {"role": "user", "content": question}]))
        else:
            _converse(answer, history)


def _only_model(context: click.Context, sources: Sources) -> str | None:
    """Return the model that the command line names, and refuse flags that can't reach a server.

    What the environment and a file say is about engines started here.
    """
    said = sources.layers[0]
    for name, spelled in said.spelled.items():
        if name != "model":
            raise click.UsageError(f"{spelled} has no effect with --url; drop one", context)
    return said.values.get("model")


@contextmanager
def _local(
    settings: Settings, params: SamplingParams, *, quiet: bool, verbose: bool
) -> Iterator[Answer]:
    from engine import LLM

    with StartupProgress(sys.stderr, verbose=verbose, quiet=quiet) as progress:
        llm = LLM(engine_config=settings, on_event=progress)
    with llm:

        def answer(messages: list[Message]) -> Iterator[str]:
            for news in llm.stream_chat(messages, params):
                yield from (output.text for output in news.outputs)

        yield answer


def _remote(
    url: str, model: str | None, api_key: str | None, params: SamplingParams
) -> AbstractContextManager[Answer]:
    from engine_cli.remote import connect

    return connect(url, model=model, api_key=api_key, params=params)


def _converse(answer: Answer, history: list[Message]) -> None:
    """Read, answer, remember, until the user leaves."""
    messages = list(history)
    click.echo(_HELP, err=True)
    while (line := _read_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                messages = list(history)
            case command if command.startswith("/"):
                click.echo(f"unknown command {command!r}. {_HELP}", err=True)
            case text:
                messages.append({"role": "user", "content": text})
                try:
                    reply = _say(answer(messages))
                except (KeyboardInterrupt, RequestError) as error:
                    click.echo(f"\n({error or 'stopped'})", err=True)
                    messages.pop()
                else:
                    messages.append({"role": "assistant", "content": reply})


def _read_line() -> str | None:
    """Return the next line, or None at the end of input."""
    if sys.stdin.isatty():
        import_module("readline")  # gives input() its history and editing keys
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _say(pieces: Iterator[str]) -> str:
    """Print an answer as it comes and return it whole."""
    said = []
    for piece in pieces:
        said.append(piece)
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()
    return "".join(said)
