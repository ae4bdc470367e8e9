"""The flags of a workload that is run in an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from engine_cli.bench_output import count

if TYPE_CHECKING:
    from engine_tools.bench.running import Workload


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
