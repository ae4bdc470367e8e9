"""`engine bench serve`: how a server does under load."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from engine_cli.bench_output import check_before, count, output_options, show, teller
from engine_cli.examples import with_examples
from engine_cli.state import command_settings, debug_option


def _a_number(_context: click.Context, _param: click.Parameter, value: float) -> float:
    # A range lets NaN pass, which is neither below nor above anything.
    if math.isnan(value):
        raise click.BadParameter("nan is no number")
    return value


def _run(**options: Any) -> int:
    check_before(options)
    from engine_tools.bench.serve import Load, bench_serve

    names = [name for name in Load.__dataclass_fields__ if name in options]
    load = Load(**{name: options[name] for name in names}, seed=options["prompt_seed"])
    result = bench_serve(load, api_key=options["api_key"], progress=teller(options))
    show(result, options)
    # Some failures are a result; nothing but failures is none.
    return int(sum(result.failures.values()) == load.num_prompts * load.repeats)


serve = click.Command(
    "serve",
    callback=_run,
    context_settings=command_settings(),
    help=with_examples(
        "Drive a server (any that speaks OpenAI's completions API) and time its answers.\n\n"
        "Requests arrive as a Poisson process of --request-rate, or all at once.",
        "engine bench serve --url http://127.0.0.1:8000 --request-rate 4 --num-prompts 200",
        "engine bench serve --dataset prompts.jsonl --max-concurrency 16",
    ),
    params=[
        click.Option(["--url"], default="http://127.0.0.1:8000", show_default=True),
        click.Option(["--model"], help="The served name; the server's first by default."),
        click.Option(["--api-key"], envvar="OPENAI_API_KEY", help="[env: OPENAI_API_KEY]"),
        count("--num-prompts", 100, "Requests of each repeat."),
        click.Option(
            ["--request-rate"],
            type=click.FloatRange(min=0, min_open=True),
            callback=_a_number,
            default="inf",
            show_default=True,
            help="Requests per second on average; `inf` for all at once.",
        ),
        click.Option(
            ["--max-concurrency"],
            type=click.IntRange(min=1),
            help="Requests that may be open at once; the others wait.",
        ),
        count("--input-len", 128, "Tokens (of a text: letters) of each random prompt."),
        click.Option(
            ["--prompts"],
            type=click.Choice(["ids", "text"]),
            default="ids",
            show_default=True,
            help="Make random prompts of token ids, or of text where a server takes no ids.",
        ),
        count("--output-len", 128, "Tokens that are asked for."),
        click.Option(
            ["--dataset"],
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help='Prompts instead of random ones: a line each of {"prompt": …, "output_len": …}.',
        ),
        count("--vocab-size", 1000, "Random token ids are below it."),
        click.Option(
            ["--prompt-seed"],
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Of random prompts and arrivals.",
        ),
        count("--repeats", 1, "How often it is measured."),
        count("--warm-up", 1, "Requests that are sent before.", least=0),
        click.Option(
            ["--ignore-eos/--no-ignore-eos"],
            default=True,
            show_default=True,
            help="Ask for just --output-len tokens; not every server knows the field.",
        ),
        click.Option(
            ["--timeout"],
            type=click.FloatRange(min=0, min_open=True),
            callback=_a_number,
            default=600.0,
            show_default=True,
            help="Seconds that one answer may take.",
        ),
        *output_options(),
        debug_option(),
    ],
)
