"""Every combination of modes on one model and one machine: right or not, and how fast."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ConfigError, UnknownPluginError
from engine.plugin import Numerics
from engine.registry import Registry
from engine.settings import Settings
from engine_tools.bench.figures import Figure
from engine_tools.bench.fresh import Reply, pack_settings, run_fresh
from engine_tools.bench.matrix_result import Cell, MatrixResult, Tokens, Verdict
from engine_tools.bench.running import Workload
from engine_tools.bench.startup import empty_caches, with_cache_in
from engine_tools.verify.answers import Answer
from engine_tools.verify.comparison import compare
from engine_tools.verify.matrix import Combination, combinations
from engine_tools.verify.workload import Batch

REFERENCE = Combination("none", "none", "eager")
"""Everything off: the tokens of every other combination are compared with its tokens."""
_CELL = "engine_tools.bench.cell:measure_cell"


@dataclass(frozen=True)
class Plan:
    """How a matrix is run.

    Attributes:
        workload: of each cell.
        modes, graph_modes, backends: those to run; every installed one where empty.
        keep_caches: start from the user's own caches instead of empty ones.
        timeout: seconds after which a cell is given up; None for no limit.
    """

    workload: Workload
    modes: Sequence[str] = ()
    graph_modes: Sequence[str] = ()
    backends: Sequence[str] = ()
    keep_caches: bool = False
    timeout: float | None = None


def chosen_combinations(registry: Registry, plan: Plan) -> list[Combination]:
    """Return the combinations of a plan, the reference first.

    Raises:
        ConfigError: a name isn't installed; names the flag and what is.
    """
    axes = {
        "--modes": ("compile_modes", plan.modes),
        "--graph-modes": ("cudagraph_modes", plan.graph_modes),
        "--backends": ("backends", plan.backends),
    }
    for flag, (kind, names) in axes.items():
        for name in names:
            try:
                registry.load(kind, name)
            except UnknownPluginError as error:
                raise ConfigError(f"{flag}={name}: {error}") from error
    wanted = [
        one
        for one in combinations(registry, plan.backends or None)
        if (not plan.modes or one.compilation_mode in plan.modes)
        and (not plan.graph_modes or one.cudagraph_mode in plan.graph_modes)
    ]
    return [REFERENCE, *(one for one in wanted if one != REFERENCE)]


def bench_matrix(
    settings: Settings, plan: Plan, *, progress: Callable[[str], None] = lambda _line: None
) -> MatrixResult:
    """Measure every combination of a plan, each in a process of its own.

    What is refused, fails or crashes is a row with the reason. An interrupt ends the matrix and
    keeps what was measured; before anything was, it is raised.

    Args:
        settings: of every engine; the three modes are replaced.
        plan: what is run.
        progress: is told what is being done.

    Raises:
        ConfigError: a name of the plan isn't installed.
    """
    chosen = chosen_combinations(Registry(), plan)
    plain = pinned(settings)
    cells: list[Cell] = []
    replies: list[Reply] = []
    interrupted = False
    for number, combination in enumerate(chosen, start=1):
        progress(f"{number} of {len(chosen)}: {' / '.join(combination)}")
        known = any(reply.outcome == "done" for reply in replies)
        try:
            if not interrupted:
                reply = _run(combination.within(plain), plan, bandwidth=not known)
        except KeyboardInterrupt:
            if not known:
                raise
            interrupted, reply = True, Reply("interrupted", reason="it was not measured")
        replies.append(reply)
        cells.append(cell_of(combination, reply, replies[0]))
        progress(f"  {cells[-1].summary}")
    measured = [reply.value for reply in replies if reply.outcome == "done"]
    first = measured[0] if measured else {}
    return MatrixResult(
        cells=tuple(cells),
        reference=REFERENCE,
        settings=settings,
        in_force=first.get("settings", {}),
        machine=first.get("machine", {}),
        workload={**asdict(plan.workload), "caches": "kept" if plan.keep_caches else "empty"},
        streamed_bytes=first.get("streamed_bytes", 0),
        bandwidth=first.get("bandwidth"),
    )


def pinned(settings: Settings) -> Settings:
    """Return settings of cells that compute every answer, with the very modes of their rows."""
    update = {"enable_prefix_caching": False, "on_downgrade": "error"}
    config = settings.config.model_copy(update=update)
    return Settings(config, {**settings.origins, **dict.fromkeys(update, "bench")})


def _run(settings: Settings, plan: Plan, *, bandwidth: bool) -> Reply:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, environment = Path(name), None
        if not plan.keep_caches:
            settings, environment = with_cache_in(settings, folder), empty_caches(folder)
        request = {
            "settings": pack_settings(settings),
            "workload": asdict(plan.workload),
            "bandwidth": bandwidth,
        }
        return run_fresh(_CELL, request, environment=environment, timeout=plan.timeout)


def cell_of(combination: Combination, reply: Reply, reference: Reply) -> Cell:
    """Return the row of a combination, its tokens compared with the reference's."""
    if reply.outcome != "done":
        return Cell(combination, reply.outcome, reason=reply.reason)
    value = reply.value
    tokens, reason = _compare(value, reference)
    if value["late_compiles"]:
        reason = f"{value['late_compiles']} compilations while serving; {reason}".rstrip("; ")
    return Cell(
        combination,
        "done",
        reason=reason,
        tokens=tokens,
        ready_s=value["ready_s"],
        phases=value["phases"],
        decode=Figure("decode step", "ms", tuple(value["decode_ms"])),
        ttft=Figure("TTFT", "ms", tuple(value["ttft_ms"])),
        memory=value["memory"],
        graph_bytes=value["graph_bytes"],
    )


def _compare(value: dict[str, Any], reference: Reply) -> tuple[Tokens, str]:
    """Return how the tokens compare, and the first difference in words."""
    if reference.outcome != "done":
        return Tokens("unknown"), "the reference gave no tokens to compare with"
    batch = msgspec.convert(value["batch"], Batch)
    wanted, found = (
        {batch.name: msgspec.convert(one["answers"], list[Answer])}
        for one in (reference.value, value)
    )
    result = compare(
        [batch], wanted, found, numerics=Numerics(value["numerics"]), dtype=value["dtype"]
    )
    if result.divergences:
        return Tokens("wrong", result.tokens, result.differing), str(result.divergences[0])
    verdict: Verdict = "near-ties" if result.differing else "equal"
    return Tokens(verdict, result.tokens, result.differing), ""
