"""`engine bisect`: which part of a combination is wrong?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import State
from engine_cli.verify import prompt_options


@settings_command(
    "bisect",
    examples=(
        "engine bisect ./model --compilation-mode vllm_compile --backend inductor",
        "engine bisect ./model --passes +my_pass --out fault.py",
    ),
    params=[
        *prompt_options(),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path, dir_okay=False),
            default=Path("reproduce.py"),
            show_default=True,
            help="Where to write a script that shows the fault.",
        ),
        verbose_option(),
    ],
)
@click.pass_obj
def bisect(state: State, /, sources: Sources, out: Path, verbose: bool, **options: Any) -> int:
    """Name the smallest part of the chosen modes that answers wrongly.

    Verifies the combination, then switches graphs, passes, backend and compile mode off one after
    another. Writes a script with the smallest failing prompt. Exits with 1 when something is
    wrong, 0 when nothing is.
    """
    settings = sources.settings(state)
    state.tell_notes()
    from engine_tools.bisect import Bisection, reproducer, smallest_batch
    from engine_tools.verify import Verification

    with StartupProgress(sys.stderr, quiet=not verbose) as progress:
        verification = Verification(
            settings,
            prompts=options["prompts"],
            seed=options["prompt_seed"],
            on_event=progress,
        )
        finding = Bisection(verification, settings, click.echo).run()
        if not finding.culprit:
            click.echo("nothing is wrong")
            return 0
        click.echo(f"culprit: {finding.culprit}")
        if finding.place:
            click.echo(f"where: {finding.place}")
        report = next(
            trial.report
            for trial in reversed(finding.trials)
            if trial.settings == finding.settings and trial.report is not None
        )
        if report.first is None:
            click.echo("no answer of the workload is wrong, so there is no script to write")
            return 1
        batch, comparison = smallest_batch(verification, finding.settings, report.first)
    pinned = verification.pin(finding.settings)
    script = reproducer(finding.culprit, finding.place, pinned, batch, comparison.bound)
    out.write_text(script)
    click.echo(f"written: {out} (python {out} exits with 1 while the fault is there)")
    return 1
