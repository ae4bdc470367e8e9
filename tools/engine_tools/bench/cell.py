"""One combination of modes, measured in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_tools.bench.fresh import unpack_settings
from engine_tools.bench.running import Prompter, Workload, check_fits, decode_ms


def measure_cell(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start one engine, time it, and let it answer what the reference answers too.

    Args:
        request: `settings` and `workload`, and whether to measure the device's `bandwidth`.

    Raises:
        EngineError: it is refused, can't start, or the workload doesn't fit.
    """
    begun = time.perf_counter()
    from engine import LLM
    from engine_tools.bench.machine import (
        copy_bandwidth,
        machine_facts,
        peak_memory,
        settings_in_force,
        streamed_bytes,
    )

    imports = time.perf_counter() - begun
    workload = Workload(**request["workload"])
    with LLM(engine_config=unpack_settings(request["settings"])) as llm:
        check_fits(llm, workload, at_once=True)
        device = str(llm.resolution.config.device)
        timed = _times(llm, workload)
        memory, graphs = peak_memory(device), llm.core.memory.graphs if llm.core.memory else 0
        value = {
            "ready_s": imports + llm.core.ledger.seconds,
            "phases": {"imports": imports, **llm.core.ledger.phases},
            **timed,
            "memory": memory,
            "graph_bytes": graphs,
            "late_compiles": llm.core.stats().late_compiles,
            **_answers(llm, workload),
            "streamed_bytes": streamed_bytes(llm),
            "machine": machine_facts(device),
            "settings": settings_in_force(llm),
        }
    if request["bandwidth"]:
        value["bandwidth"] = copy_bandwidth(device)  # while nothing else is on the device
    return value


def _times(llm: Any, workload: Workload) -> dict[str, list[float]]:
    prompter = Prompter(llm.core.vocab_size, workload.seed)
    for _ in range(workload.warm_up):
        decode_ms(llm, prompter, workload)
    rounds = [decode_ms(llm, prompter, workload) for _ in range(workload.repeats)]
    return {"ttft_ms": [one for one, _ in rounds], "decode_ms": [step for _, step in rounds]}


def _answers(llm: Any, workload: Workload) -> dict[str, Any]:
    """Answer the same prompts in every cell, as a verification does."""
    from engine_tools.verify.answers import answer
    from engine_tools.verify.verification import declared
    from engine_tools.verify.workload import Batch

    # Not the prompts that were timed: those depend on the number of repeats.
    prompts = Prompter(llm.core.vocab_size, workload.seed + 1).prompts(
        workload.batch_size, workload.input_len
    )
    batch = Batch("bench", tuple(map(tuple, prompts)), (workload.output_len,) * workload.batch_size)
    numerics, _ = declared(llm.resolution, llm.core.ledger.passes)
    return {
        "batch": msgspec.to_builtins(batch),
        "answers": msgspec.to_builtins(answer(llm, batch)),
        "numerics": numerics.value,
        "dtype": llm.resolution.config.dtype,
    }
