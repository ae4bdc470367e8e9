"""`engine complete`: one prompt, continued as it comes."""

from __future__ import annotations

import sys
from typing import Any

import click

from engine_cli.answering import (
    NOT_FOR_ONE_TEXT,
    local_model,
    only_model,
    pieces_of,
    remote_options,
    say,
)
from engine_cli.options import verbose_option
from engine_cli.sampling_options import sampling_options, take_sampling_params
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.state import state_of


@settings_command(
    "complete",
    model_argument=False,
    examples=(
        "engine complete 'Once upon a time' --max-tokens 50",
        "engine complete -m ./model --temperature 0 - ",
        "engine complete 'def fib(n):' --url http://127.0.0.1:8000/v1",
    ),
    params=[
        click.Argument(["prompt"]),
        *remote_options(),
        *sampling_options(without=NOT_FOR_ONE_TEXT),
        verbose_option(),
    ],
)
@click.pass_context
def complete(context: click.Context, /, sources: Sources, **options: Any) -> None:
    """Continue PROMPT and print the text as it comes.

    A PROMPT of `-` is read from standard input. With --url the model runs on that server and -m,
    if given, is the name it serves.
    """
    state = state_of(context)
    params = take_sampling_params(context)
    state.tell_notes()
    prompt = sys.stdin.read() if options["prompt"] == "-" else options["prompt"]
    if options["url"] is not None:
        from engine_cli.remote import connect

        with connect(
            options["url"],
            model=only_model(context, sources),
            api_key=options["api_key"],
            params=params,
        ) as remote:
            say(remote.complete(prompt))
        return
    settings = sources.settings(state)
    verbose = options["verbose"]
    with local_model(settings, quiet=not verbose, verbose=verbose) as llm:
        say(pieces_of(llm.stream(prompt, params)))
