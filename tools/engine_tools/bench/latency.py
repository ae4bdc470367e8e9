"""How long one batch takes when nothing else runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from engine import LLM
from engine.events import Event
from engine.settings import Settings
from engine_tools.bench.figures import Figure, distribution
from engine_tools.bench.machine import (
    copy_bandwidth,
    machine_facts,
    peak_memory,
    settings_in_force,
    streamed_bytes,
)
from engine_tools.bench.results import Result
from engine_tools.bench.running import (
    Prompter,
    Timeline,
    Workload,
    check_fits,
    decode_ms,
    run_batch,
    unnoticed_compilations,
)


def bench_latency(
    settings: Settings,
    workload: Workload,
    *,
    on_event: Callable[[Event], None] | None = None,
    progress: Callable[[str], None] = lambda _line: None,
) -> Result:
    """Give one batch at a time and time its tokens.

    Args:
        settings: of the engine.
        workload: the batch; all its sequences must run at once.
        on_event: receives every event of the start.
        progress: is told what is being done.

    Raises:
        EngineError: the engine can't start, the workload doesn't fit, or a sequence failed.
    """
    notes: list[str] = []
    with LLM(engine_config=settings, on_event=on_event) as llm:
        check_fits(llm, workload, at_once=True)
        device = str(llm.resolution.config.device)
        rounds, steps = _measure(llm, workload, notes, progress)
        weights, memory = streamed_bytes(llm), peak_memory(device)
        facts, in_force = machine_facts(device), settings_in_force(llm)
    bandwidth = copy_bandwidth(device)
    floor = 1e3 * weights / bandwidth if weights else None
    notes.append(
        "floor of a decode step: unknown; which experts it reads depends on its tokens"
        if floor is None
        else f"floor of a decode step: {weights / 1e6:,.1f} MB of weights / "
        f"{bandwidth / 1e9:,.1f} GB/s of copying on this device = {floor:.3f} ms"
    )
    return Result(
        kind="latency",
        machine={**facts, "copy bandwidth": f"{bandwidth / 1e9:.1f} GB/s"},
        settings=in_force,
        workload=asdict(workload),
        figures=_figures(rounds, steps, floor),
        memory=memory,
        notes=tuple(notes),
    )


def _measure(
    llm: LLM, workload: Workload, notes: list[str], progress: Callable[[str], None]
) -> tuple[list[list[Timeline]], list[float]]:
    prompter = Prompter(llm.core.vocab_size, workload.seed)
    rounds, steps = [], []

    def once() -> None:
        prompts = prompter.prompts(workload.batch_size, workload.input_len)
        rounds.append(run_batch(llm, prompts, workload.output_len))
        if workload.output_len > 1:
            steps.append(decode_ms(llm, prompter, workload)[1])

    for _ in range(workload.warm_up):
        progress("warm-up")
        once()
    rounds.clear()
    steps.clear()
    with unnoticed_compilations(llm, notes):
        for number in range(workload.repeats):
            progress(f"round {number + 1} of {workload.repeats}")
            once()
    return rounds, steps


def _figures(
    rounds: Sequence[Sequence[Timeline]], steps: Sequence[float], floor: float | None
) -> tuple[Figure, ...]:
    def ms(read: Callable[[Timeline], Sequence[float]]) -> list[list[float]]:
        return [[1e3 * value for line in lines for value in read(line)] for lines in rounds]

    found = [
        distribution("TTFT", "ms", ms(lambda line: [line.ttft])),
        distribution("ITL", "ms", ms(lambda line: line.itl), floor=floor),
        distribution(
            "TPOT", "ms", ms(lambda line: [] if line.tpot is None else [line.tpot]), floor=floor
        ),
        distribution("end to end", "ms", ms(lambda line: [line.e2e])),
        Figure("decode step", "ms", tuple(steps), floor=floor) if steps else None,
    ]
    return tuple(figure for figure in found if figure is not None)
