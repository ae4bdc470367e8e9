"""`engine verify`: does a combination answer as the model's own Python does?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import State
from engine_cli.tables import write_table

if TYPE_CHECKING:
    from engine_tools.verify import Cell, Report


def prompt_options() -> list[click.Option]:
    """Return the flags that say what is answered."""
    return [
        click.Option(
            ["--prompt", "prompts"],
            multiple=True,
            metavar="TEXT",
            help="Answer this too, besides the random prompts; may be repeated.",
        ),
        click.Option(
            ["--prompt-seed"], type=int, default=0, show_default=True, help="Of random prompts."
        ),
    ]


@settings_command(
    "verify",
    examples=(
        "engine verify ./model --compilation-mode vllm_compile --cudagraph-mode full_and_piecewise",
        "engine verify ./model --matrix --json",
    ),
    params=[
        *prompt_options(),
        click.Option(["--matrix"], is_flag=True, help="Verify every installed combination."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the reports as JSON."),
        verbose_option(),
    ],
)
@click.pass_obj
def verify(state: State, /, sources: Sources, **options: Any) -> int:
    """Compare the chosen modes with everything off: `none`, `none`, `eager`.

    Answers random prompts at every recorded size and its neighbours, prefill beside decode, one
    batch before and after another, and again with every static buffer poisoned. Exits with 1 when
    something is wrong.
    """
    settings = sources.settings(state)
    state.tell_notes()
    from engine_tools.verify import Verification, check_all

    def tell(line: str) -> None:
        click.echo(line, err=True)

    with StartupProgress(sys.stderr, quiet=not options["verbose"]) as progress:
        verification = Verification(
            settings,
            prompts=options["prompts"],
            seed=options["prompt_seed"],
            on_event=progress,
            progress=tell,
        )
        if options["matrix"]:
            return show_matrix(list(check_all(verification, settings)), options["as_json"])
        report = verification.check(settings)
    if options["as_json"]:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        click.echo("\n".join(report.lines()))
    return int(not report.ok)


def show_matrix(cells: Sequence[Cell], as_json: bool) -> int:
    """Print what came of every combination; return the exit code."""
    if as_json:
        rows = [
            {
                **cell.combination._asdict(),
                "refused": cell.refusal,
                "report": cell.report.to_dict() if cell.report else None,
            }
            for cell in cells
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        columns = ("compile mode", "graph mode", "backend", "verdict", "tokens", "deviation", "")
        write_table(sys.stdout, columns, [_row(cell) for cell in cells])
    return int(not all(cell.ok for cell in cells))


def _row(cell: Cell) -> tuple[str, ...]:
    if (report := cell.report) is None:
        return (*cell.combination, "refused", "-", "-", cell.refusal)
    comparison = report.comparison
    tokens = f"{comparison.tokens - comparison.differing}/{comparison.tokens}"
    verdict = "right" if report.ok else "wrong"
    return (*cell.combination, verdict, tokens, f"{comparison.deviation:.2g}", _note(report))


def _note(report: Report) -> str:
    if report.ok:
        return ""
    wrong = next(check for check in report.checks if not check.ok)
    return report.place or f"{wrong.name}: {wrong.detail}"
