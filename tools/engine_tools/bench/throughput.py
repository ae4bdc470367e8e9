"""How much an engine does when it is given everything at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from engine import LLM
from engine.events import Event
from engine.settings import Settings
from engine_tools.bench.figures import Figure
from engine_tools.bench.machine import machine_facts, peak_memory, settings_in_force
from engine_tools.bench.results import Result
from engine_tools.bench.running import (
    Prompter,
    Workload,
    check_fits,
    generate_seconds,
    unnoticed_compilations,
)


def bench_throughput(
    settings: Settings,
    workload: Workload,
    *,
    on_event: Callable[[Event], None] | None = None,
    progress: Callable[[str], None] = lambda _line: None,
) -> Result:
    """Give all prompts at once; the scheduler decides how many run together.

    Args:
        settings: of the engine.
        workload: the prompts; `batch_size` of them.
        on_event: receives every event of the start.
        progress: is told what is being done.

    Raises:
        EngineError: the engine can't start, a sequence doesn't fit, or one failed.
    """
    notes: list[str] = []
    seconds: list[float] = []
    with LLM(engine_config=settings, on_event=on_event) as llm:
        check_fits(llm, workload, at_once=False)
        prompter = Prompter(llm.core.vocab_size, workload.seed)

        def once() -> float:
            prompts = prompter.prompts(workload.batch_size, workload.input_len)
            return generate_seconds(llm, prompts, workload.output_len)

        for _ in range(workload.warm_up):
            progress("warm-up")
            once()
        before = llm.core.stats().preemptions
        with unnoticed_compilations(llm, notes):
            for number in range(workload.repeats):
                progress(f"round {number + 1} of {workload.repeats}")
                seconds.append(once())
        if preempted := llm.core.stats().preemptions - before:
            notes.append(
                f"{preempted} preemptions: the KV cache of {llm.core.kv_tokens} tokens was full"
            )
        device = str(llm.resolution.config.device)
        memory, facts = peak_memory(device), machine_facts(device)
        in_force = settings_in_force(llm)
    return Result(
        kind="throughput",
        machine=facts,
        settings=in_force,
        workload=asdict(workload),
        figures=rates(workload, seconds),
        memory=memory,
        notes=tuple(notes),
    )


def rates(workload: Workload, seconds: list[float]) -> tuple[Figure, ...]:
    """Return what was done in a second, for repeats that took so long each."""
    requests = workload.batch_size
    output = requests * workload.output_len
    total = output + requests * workload.input_len

    def per_second(count: int) -> tuple[float, ...]:
        return tuple(count / each for each in seconds)

    return (
        Figure("output tokens", "tokens/s", per_second(output)),
        Figure("total tokens", "tokens/s", per_second(total)),
        Figure("requests", "requests/s", per_second(requests)),
        Figure("whole run", "s", tuple(seconds)),
    )
