"""`engine bench matrix`: which modes are right and fastest, on this model and this machine?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from engine.errors import ConfigError
from engine_cli.bench_options import batch_options, workload_of
from engine_cli.bench_output import check_before, count, output_options, show, teller
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.state import State

if TYPE_CHECKING:
    from engine.settings import Settings

_INSTEAD = {
    "compilation_config.mode": "--modes",
    "compilation_config.cudagraph_mode": "--graph-modes",
    "compilation_config.backend": "--backends",
}


def _names(_context: click.Context, _param: click.Parameter, value: str | None) -> list[str]:
    return [name for part in (value or "").split(",") if (name := part.strip())]


def _axis(flag: str, what: str) -> click.Option:
    return click.Option(
        [flag], callback=_names, metavar="NAME,…", help=f"Only these {what}; all by default."
    )


@settings_command(
    "matrix",
    examples=(
        "engine bench matrix ./model --report matrix.html",
        "engine bench matrix ./model --graph-modes none,full --batch-size 8",
    ),
    params=[
        _axis("--modes", "compile modes"),
        _axis("--graph-modes", "CUDA-graph modes"),
        _axis("--backends", "backends"),
        *batch_options(count("--batch-size", 1, "Sequences that are given at once.")),
        click.Option(
            ["--keep-caches"],
            is_flag=True,
            help="Start with your own caches; each start finds empty ones by default.",
        ),
        click.Option(
            ["--cell-timeout"],
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Give a combination up after so long; no limit by default.",
        ),
        *output_options(),
    ],
)
@click.pass_obj
def matrix(state: State, /, sources: Sources, **options: Any) -> int:
    """Measure every installed combination of modes on MODEL and recommend one.

    Each combination runs in a process of its own, and its tokens are compared with those of
    everything off: none / none / eager. What is refused, fails or crashes is a row with the reason.
    Exits with 1 when none is known to be right. An interrupt shows what was measured until then.
    """
    check_before(options)
    settings = sources.settings(state)
    _refuse_single_modes(settings, state)
    state.tell_notes()
    from engine_tools.bench.matrix import Plan, bench_matrix

    plan = Plan(
        workload_of(options, "batch_size"),
        modes=options["modes"],
        graph_modes=options["graph_modes"],
        backends=options["backends"],
        keep_caches=options["keep_caches"],
        timeout=options["cell_timeout"],
    )
    result = bench_matrix(settings, plan, progress=teller(options))
    show(result, options)
    if result.interrupted:
        return 130
    return int(not any(cell.right for cell in result.cells))


def _refuse_single_modes(settings: Settings, state: State) -> None:
    """A mode that is named would be ignored.

    Raises:
        ConfigError: it was named on the command line; names the flag to use.
    """
    for name, flag in _INSTEAD.items():
        origin = settings.origins.get(name, "")
        if origin.startswith("-"):
            raise ConfigError(f"{origin}: a matrix runs several; use {flag} to choose among them")
        if origin:
            state.notes.append(f"{origin}: {name} is left aside; a matrix runs several")
