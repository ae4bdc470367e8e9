"""`engine bench`: how fast is it, here?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from engine_cli.bench_output import check_before, count, output_options, show, teller
from engine_cli.bench_serve import serve
from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import State, command_settings

if TYPE_CHECKING:
    from engine_tools.bench.running import Workload

bench = click.Group(
    "bench",
    help="Measure an engine, its starts, its modes, or any server.",
    context_settings=command_settings(),
)


def batch_options(first: click.Option) -> list[click.Option]:
    """Return the flags of a workload, the number of sequences first."""
    return [
        first,
        count("--input-len", 128, "Tokens of each prompt."),
        count("--output-len", 128, "Tokens that follow each prompt."),
        count("--repeats", 3, "How often it is measured."),
        count("--warm-up", 1, "How often it is run before.", least=0),
        click.Option(
            ["--prompt-seed"], type=int, default=0, show_default=True, help="Of random prompts."
        ),
    ]


def workload_of(options: dict[str, Any], sequences: str) -> Workload:
    """Return the workload that flags describe."""
    from engine_tools.bench.running import Workload

    return Workload(
        batch_size=options[sequences],
        input_len=options["input_len"],
        output_len=options["output_len"],
        repeats=options["repeats"],
        warm_up=options["warm_up"],
        seed=options["prompt_seed"],
    )


@settings_command(
    "latency",
    params=[
        *batch_options(count("--batch-size", 1, "Sequences that are given at once.")),
        *output_options(),
        verbose_option(),
    ],
)
@click.pass_obj
def latency(state: State, /, sources: Sources, **options: Any) -> None:
    """Time the tokens of one batch of random prompts when nothing else runs."""
    check_before(options)
    settings = sources.settings(state)
    state.tell_notes()
    from engine_tools.bench.latency import bench_latency

    quiet, verbose = options["quiet"], options["verbose"]
    with StartupProgress(sys.stderr, verbose=verbose, quiet=quiet) as progress:
        result = bench_latency(
            settings,
            workload_of(options, "batch_size"),
            on_event=progress,
            progress=teller(options),
        )
    show(result, options)


@settings_command(
    "throughput",
    params=[
        *batch_options(count("--num-prompts", 64, "Prompts that are given at once.")),
        *output_options(),
        verbose_option(),
    ],
)
@click.pass_obj
def throughput(state: State, /, sources: Sources, **options: Any) -> None:
    """Measure tokens and requests a second when every prompt is given at once."""
    check_before(options)
    settings = sources.settings(state)
    state.tell_notes()
    from engine_tools.bench.throughput import bench_throughput

    quiet, verbose = options["quiet"], options["verbose"]
    with StartupProgress(sys.stderr, verbose=verbose, quiet=quiet) as progress:
        result = bench_throughput(
            settings,
            workload_of(options, "num_prompts"),
            on_event=progress,
            progress=teller(options),
        )
    show(result, options)


@settings_command(
    "startup", params=[count("--repeats", 3, "How often it is measured."), *output_options()]
)
@click.pass_obj
def startup(state: State, /, sources: Sources, **options: Any) -> None:
    """Measure starts by phase: with empty caches, and with what such a start left.

    Each start has a process of its own. Nothing of your own caches is used or changed.
    """
    check_before(options)
    settings = sources.settings(state)
    state.tell_notes()
    from engine_tools.bench.startup import bench_startup

    result = bench_startup(settings, repeats=options["repeats"], progress=teller(options))
    show(result, options)


for command in (latency, throughput, serve, startup):
    bench.add_command(command)
