"""`engine profile`: where the time of a step goes, and a trace of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import State
from engine_cli.tables import write_table

if TYPE_CHECKING:
    from engine_tools.profile.record import Profile
    from engine_tools.profile.summary import Phase

_LONGEST_NAME = 60


def _count(flag: str, default: int, text: str) -> click.Option:
    return click.Option(
        [flag], type=click.IntRange(min=1), default=default, show_default=True, help=text
    )


@settings_command(
    "profile",
    examples=(
        "engine profile ./model --steps 50 --batch 8",
        "engine profile --out trace.json.gz --json",
    ),
    params=[
        _count("--steps", 20, "Decode steps to run."),
        _count("--batch", 1, "Sequences that run at once."),
        _count("--prompt-tokens", 32, "Length of each prompt."),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path, dir_okay=False),
            default=Path("engine-trace.json"),
            show_default=True,
            metavar="FILE",
            help="Where to write the Chrome trace; compressed when it ends in .gz.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the summary as JSON."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print the summary only."),
        verbose_option(),
    ],
)
@click.pass_obj
def profile(state: State, /, sources: Sources, **options: Any) -> None:
    """Run a few steps of MODEL under PyTorch's profiler and show where their time goes.

    Random prompts are computed, then decoded. The trace opens in https://ui.perfetto.dev and in
    chrome://tracing.
    """
    settings = sources.settings(state)
    state.tell_notes()
    from engine_tools.profile.record import Workload
    from engine_tools.profile.record import profile as run_profile

    workload = Workload(options["steps"], options["batch"], options["prompt_tokens"])
    with StartupProgress(
        sys.stderr, verbose=options["verbose"], quiet=options["quiet"]
    ) as progress:
        result = run_profile(settings, workload, options["out"], on_event=progress)
    if options["as_json"]:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(result, enc_hook=str)).decode())
    else:
        _print(result)


def _print(result: Profile) -> None:
    click.echo(f"a decode step takes {_ms(result.plain_us)} without the profiler")
    for phase in result.phases:
        _print_phase(phase, result.device)
    click.echo(f"\ntrace: {result.trace} (open it in https://ui.perfetto.dev)")


def _print_phase(phase: Phase, device: str) -> None:
    steps = f"{phase.steps} step{'s' * (phase.steps > 1)}"
    click.echo(f"\n{phase.name}: {steps}, {_ms(phase.step_us)} each with the profiler")
    for share in phase.shares:
        click.echo(f"  {100 * share.share:5.1f} %  {_ms(share.us)} a step: {share.name}")
    click.echo()
    _print_table("range", [(t.name, t.count, t.us, phase.steps) for t in phase.ranges])
    if phase.top:
        click.echo()
        what = "operator" if device == "cpu" else "kernel"
        _print_table(what, [(t.name, t.count, t.us, phase.steps) for t in phase.top])


def _print_table(what: str, rows: list[tuple[str, int, float, int]]) -> None:
    write_table(
        sys.stdout,
        (what, "count", "total", "mean", "a step"),
        [
            (name[:_LONGEST_NAME], str(count), _ms(us), f"{us / count:.1f} µs", _ms(us / steps))
            for name, count, us, steps in rows
        ],
    )


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f} ms"
