"""`engine bench`: how fast is it, here?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from engine_cli.bench_matrix import matrix
from engine_cli.bench_options import batch_options, workload_of
from engine_cli.bench_output import check_before, count, output_options, show, teller
from engine_cli.bench_serve import serve
from engine_cli.examples import with_examples
from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import State, command_settings, debug_option

if TYPE_CHECKING:
    from engine_tools.bench.results import Result

bench = click.Group(
    "bench",
    help=with_examples(
        "Measure an engine, its starts, its modes, or any server.",
        "engine bench matrix ./model --report matrix.html",
        "engine bench serve --url http://127.0.0.1:8000 --request-rate 4",
    ),
    context_settings=command_settings(),
    params=[debug_option()],
)


@settings_command(
    "latency",
    examples=(
        "engine bench latency ./model --batch-size 4",
        "engine bench latency --input-len 1000 --json latency.json",
    ),
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
    from engine_tools.bench.latency import bench_latency

    _run(bench_latency, "batch_size", state, sources, options)


@settings_command(
    "throughput",
    examples=(
        "engine bench throughput ./model --num-prompts 200",
        "engine bench throughput ./shape --load-format dummy --skip-tokenizer",
    ),
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
    from engine_tools.bench.throughput import bench_throughput

    _run(bench_throughput, "num_prompts", state, sources, options)


def _run(
    measure: Callable[..., Result],
    size: str,
    state: State,
    sources: Sources,
    options: dict[str, Any],
) -> None:
    """Measure an engine that is started for it; `size` is the option that gives the batch."""
    settings = sources.settings(state)
    state.tell_notes()
    quiet, verbose = options["quiet"], options["verbose"]
    with StartupProgress(sys.stderr, verbose=verbose, quiet=quiet) as progress:
        result = measure(
            settings, workload_of(options, size), on_event=progress, progress=teller(options)
        )
    show(result, options)


@settings_command(
    "startup",
    examples=(
        "engine bench startup ./model --repeats 5",
        "engine bench startup ./model --compilation-mode vllm_compile --report startup.png",
    ),
    params=[count("--repeats", 3, "How often it is measured."), *output_options()],
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


for command in (latency, throughput, serve, startup, matrix):
    bench.add_command(command)
