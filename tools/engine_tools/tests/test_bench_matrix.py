"""Each combination is a row, whatever becomes of it; the recommendation follows from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import ConfigError, Registry, Settings
from engine.plugin_files import VARIABLE
from engine_tools.bench import matrix
from engine_tools.bench.cell import measure_cell
from engine_tools.bench.child import reply_of
from engine_tools.bench.command_line import command_line
from engine_tools.bench.figures import Figure
from engine_tools.bench.fresh import Reply, pack_settings
from engine_tools.bench.matrix import (
    REFERENCE,
    Plan,
    bench_matrix,
    cell_of,
    chosen_combinations,
    pinned,
)
from engine_tools.bench.matrix_result import Cell, Tokens
from engine_tools.bench.recommendation import best, recommend
from engine_tools.bench.running import Workload
from engine_tools.verify import Combination, combinations

Make = Callable[..., Settings]
# A prompt of three tokens is what the mode `hasty` computes wrongly.
SMALL = Workload(batch_size=1, input_len=3, output_len=3, repeats=2, warm_up=0)


@pytest.mark.slow
def test_a_combination_that_crashes_is_a_row(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(Path(__file__).with_name("crashing.py")))
    plan = Plan(SMALL, modes=("none", "crashing"), graph_modes=("none",))
    said: list[str] = []
    result = bench_matrix(settings(), plan, progress=said.append)
    cells = {cell.combination.compilation_mode: cell for cell in result.cells}
    assert [*cells] == ["none", "crashing"]
    assert (cells["none"].tokens.verdict, cells["none"].right) == ("equal", True)
    assert cells["none"].tokens.compared == 6
    assert cells["crashing"].outcome == "crashed"
    assert "signal SIGSEGV" in cells["crashing"].reason
    [table] = result.tables()
    assert [row[3].partition(",")[0] for row in table.rows] == ["equal", "crashed"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert [len(chart.bars) for chart in result.charts()] == [1, 1, 1]
    assert result.charts()[0].floor == result.floor_ms
    assert any(note.startswith("recommended: none / none / eager") for note in result.notes)
    assert len(said) == 4
    assert result.to_dict()["cells"][1]["decode"] is None


def test_an_interrupt_keeps_what_was_measured(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: Iterator[Reply | KeyboardInterrupt] = iter([measured(settings()), KeyboardInterrupt()])

    def run(*_: Any, **__: Any) -> Reply:
        reply = next(replies)
        if isinstance(reply, KeyboardInterrupt):
            raise reply
        return reply

    monkeypatch.setattr(matrix, "_run", run)
    plan = Plan(SMALL, modes=("none", "vllm_compile"), graph_modes=("none",))
    result = bench_matrix(settings(), plan)
    assert result.interrupted
    assert result.cells[0].right
    assert {cell.outcome for cell in result.cells[1:]} == {"interrupted"}
    assert len(result.cells) > 2
    assert any(note.startswith("recommended: none / none / eager") for note in result.notes)
    replies = iter([KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        bench_matrix(settings(), plan)


def measured(settings: Settings) -> Reply:
    """Measure a combination in this process."""
    request = {"settings": pack_settings(settings), "workload": vars(SMALL), "bandwidth": False}
    return Reply(**reply_of(f"{measure_cell.__module__}:measure_cell", request))


@pytest.mark.usefixtures("faults")
def test_a_combination_with_other_tokens_is_wrong(settings: Make) -> None:
    reference = measured(settings())
    hasty = Combination("hasty", "none", "eager")
    found = cell_of(hasty, measured(hasty.within(settings())), reference)
    assert (found.tokens.verdict, found.right) == ("wrong", False)
    assert "the reference's is" in found.reason
    assert found.decode is not None
    crashed = Reply("crashed", reason="it fell over")
    assert cell_of(REFERENCE, reference, crashed).tokens.verdict == "unknown"


def test_a_combination_that_cannot_work_here_is_refused_with_the_reason(settings: Make) -> None:
    full = Combination("none", "full", "eager")
    found = cell_of(full, measured(full.within(settings())), Reply("done"))
    assert found.outcome == "refused"
    assert "--graph-device simulated" in found.reason


def test_no_combination_is_replaced_by_the_next_best(settings: Make) -> None:
    given = settings()
    lenient = Settings(given.config.model_copy(update={"on_downgrade": "warn"}), given.origins)
    full = Combination("none", "full", "eager")
    assert measured(full.within(lenient)).outcome == "done"
    assert measured(full.within(pinned(lenient))).outcome == "refused"


def test_a_plan_names_what_is_run() -> None:
    registry = Registry()
    whole = chosen_combinations(registry, Plan(SMALL))
    assert whole[0] == REFERENCE
    assert sorted(whole) == sorted(combinations(registry))
    some = chosen_combinations(
        registry, Plan(SMALL, ["none", "vllm_compile"], ["full"], ["inductor"])
    )
    # A backend that only a family knows is installed too.
    found = chosen_combinations(registry, Plan(SMALL, ["vllm_compile"], ["full"], ["aot_eager"]))
    assert found[1:] == [Combination("vllm_compile", "full", "aot_eager")]
    # A mode that calls no backend is in a matrix whatever the backends are.
    assert some == [
        REFERENCE,
        Combination("none", "full", "eager"),
        Combination("vllm_compile", "full", "inductor"),
    ]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan(SMALL, modes=["nome"]), "--modes=nome: .*'none'"),
        (Plan(SMALL, graph_modes=["ful"]), "--graph-modes=ful: .*'full'"),
        (Plan(SMALL, backends=["eagre"]), "--backends=eagre: .*'eager'"),
    ],
)
def test_a_name_that_is_not_installed_is_refused(plan: Plan, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        chosen_combinations(Registry(), plan)


def cell(modes: str, *ms: float, ready: float = 1.0, verdict: str = "equal") -> Cell:
    return Cell(
        Combination(*modes.split()),
        "done",
        tokens=Tokens(verdict),  # type: ignore[arg-type]  # a verdict, from a parameter
        ready_s=ready,
        decode=Figure("decode step", "ms", ms),
        ttft=Figure("TTFT", "ms", ms),
    )


PLAIN = cell("none none eager", 10.0, 11.0)


def test_the_fastest_right_combination_is_recommended(settings: Make) -> None:
    wrong = cell("hasty full eager", 1.0, 1.1, verdict="wrong")
    fast = cell("vllm_compile full inductor", 5.0, 5.5, ready=31.0)
    refused = Cell(Combination("a", "b", "c"), "refused", reason="not here")
    said = [*recommend([PLAIN, wrong, fast, refused], REFERENCE, settings())]
    assert said[0] == (
        "recommended: vllm_compile / full / inductor, 5.250 ms a step, "
        "2.00 times as fast as none / none / eager; its start takes 30.0 s more"
    )
    assert said[1].endswith(
        "--compilation-mode vllm_compile --cudagraph-mode full --backend inductor"
    )


def test_a_simpler_combination_is_taken_when_it_is_as_fast() -> None:
    fastest = cell("vllm_compile full inductor", 5.0, 5.6)
    simpler = cell("none full eager", 5.5, 6.0)
    assert best([PLAIN, fastest, simpler], REFERENCE) == (simpler, fastest)
    slower = cell("none full eager", 5.7, 6.0)
    assert best([PLAIN, fastest, slower], REFERENCE) == (fastest, fastest)
    sooner = cell("dynamo_trace_once full inductor", 5.1, 5.7, ready=0.5)
    assert best([PLAIN, fastest, sooner], REFERENCE) == (sooner, fastest)


def test_nothing_is_recommended_when_no_tokens_are_known_to_be_right(settings: Make) -> None:
    unknown = cell("none full eager", 1.0, verdict="unknown")
    [said] = recommend([unknown], REFERENCE, settings())
    assert said.startswith("nothing is recommended")


def test_the_command_line_keeps_what_the_user_said(settings: Make) -> None:
    given = settings(passes=("+silu_mul", "-noop_elimination"))
    config = given.config.model_copy(update={"model": "my model", "enable_prefix_caching": False})
    origins = {
        "model": "MODEL",
        "threads": "--threads",
        "dtype": "ENGINE_DTYPE",
        "enable_prefix_caching": "--no-enable-prefix-caching",
        "compilation_config.passes": "--passes",
    }
    assert command_line(REFERENCE, Settings(config, origins)) == (
        "engine serve --model 'my model' --threads 1 --no-enable-prefix-caching "
        "--passes +silu_mul,-noop_elimination "
        "--compilation-mode none --cudagraph-mode none --backend eager"
    )
