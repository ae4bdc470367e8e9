"""`engine generate`: prompts in, text out."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from engine_cli.options import verbose_option
from engine_cli.sampling_options import sampling_options, take_sampling_params
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import state_of

if TYPE_CHECKING:
    from engine.request import RequestOutput

_SHOWN_PROMPT = 60


@settings_command(
    "generate",
    examples=(
        "engine generate 'Once upon a time' --max-tokens 50",
        "engine generate -m ./model --temperature 0 --json 'One' 'Two'",
    ),
    model_argument=False,
    params=[
        click.Argument(["prompts"], nargs=-1, required=True, metavar="PROMPT..."),
        *sampling_options(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object a prompt."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print the results only."),
        verbose_option(),
    ],
)
@click.pass_context
def generate(context: click.Context, /, sources: Sources, **options: Any) -> None:
    """Continue each PROMPT and print the results.

    A PROMPT of `-` is read from standard input. Results go to standard output, everything else
    to standard error.
    """
    state = state_of(context)
    params = take_sampling_params(context)
    settings = sources.settings(state)
    state.tell_notes()
    prompts = [sys.stdin.read() if prompt == "-" else prompt for prompt in options["prompts"]]
    from engine import LLM

    quiet = options["quiet"]
    with StartupProgress(sys.stderr, verbose=options["verbose"], quiet=quiet) as progress:
        llm = LLM(engine_config=settings, on_event=progress)
    with llm:
        results = llm.generate(prompts, params, progress=not quiet)
    if options["as_json"]:
        for result in results:
            click.echo(json.dumps(_as_dict(result), ensure_ascii=False))
    else:
        _print(results)


def _print(results: Sequence[RequestOutput]) -> None:
    """Print bare text for one completion; say which is which when there are several."""
    several = len(results) > 1 or len(results[0].outputs) > 1
    for result in results:
        for output in result.outputs:
            if several:
                start = " ".join((result.prompt or "").split())[:_SHOWN_PROMPT]
                number = f" ({output.index + 1})" if len(result.outputs) > 1 else ""
                click.echo(click.style(f"== {start}{number}", bold=True))
            click.echo(output.text)


def _as_dict(result: RequestOutput) -> dict[str, Any]:
    import msgspec

    content: dict[str, Any] = msgspec.to_builtins(dataclasses.asdict(result))
    return content
