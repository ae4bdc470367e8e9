"""Seconds of a start by phase, with empty caches and with what the first start left."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.settings import Settings
from engine_tools.bench.figures import Figure
from engine_tools.bench.fresh import pack_settings, run_fresh, unpack_settings
from engine_tools.bench.results import Result
from engine_tools.changed_settings import with_compilation

_BY = "bench"
KINDS = ("cold", "warm")


def empty_caches(folder: Path) -> dict[str, str]:
    """Return the variables that put every cache of the compilers into a folder."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        # Inductor keeps its precompiled header in the temporary folder, beside its cache.
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def with_cache_in(settings: Settings, folder: Path) -> Settings:
    """Return settings whose own cache lies in a folder."""
    return with_compilation(settings, _BY, cache_dir=folder / "store")


def start_once(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start an engine in this process and return where the time went.

    Raises:
        EngineError: it can't start.
    """
    begun = time.perf_counter()
    import torch  # noqa: F401 - its import is a part of every start

    from engine import LLM
    from engine_tools.bench.machine import machine_facts, peak_memory, settings_in_force

    imports = time.perf_counter() - begun
    with LLM(engine_config=unpack_settings(request["settings"])) as llm:
        ledger, device = llm.core.ledger, str(llm.resolution.config.device)
        phases = {**ledger.phases}
        phases["other"] = max(0.0, ledger.seconds - sum(phases.values()))
        return {
            "seconds": {
                "imports": imports,
                **phases,
                **{f"compile: {name}": s for name, s in ledger.compile_phases.items()},
                "ready": imports + ledger.seconds,
            },
            "compiled": ledger.cache_misses,
            "from the cache": ledger.cache_hits,
            "memory": peak_memory(device),
            "machine": machine_facts(device),
            "settings": settings_in_force(llm),
        }


def bench_startup(
    settings: Settings, *, repeats: int, progress: Callable[[str], None] = lambda _line: None
) -> Result:
    """Start engines in fresh processes: cold, then warm, as often as asked.

    Args:
        settings: of the engine; its cache is put into a temporary folder.
        repeats: how many pairs of starts.
        progress: is told what is being done.

    Raises:
        EngineError: an engine can't start.
    """
    starts: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for number in range(repeats):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for kind, start in _pair(settings, Path(folder)):
                starts[kind].append(start)
                ready = start["seconds"]["ready"]
                progress(f"{kind} start {number + 1} of {repeats}: ready after {ready:.1f} s")
    last = starts[KINDS[-1]][-1]
    everything = [start for kind in KINDS for start in starts[kind]]
    return Result(
        kind="startup",
        machine=last["machine"],
        settings=last["settings"],
        workload={"repeats": repeats, "starts": "each in a fresh process"},
        figures=tuple(figure for kind in KINDS for figure in _figures(kind, starts[kind])),
        memory={place: max(s["memory"][place] for s in everything) for place in last["memory"]},
        notes=tuple(_counts(kind, starts[kind][-1]) for kind in KINDS),
    )


def _pair(settings: Settings, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    request = {"settings": pack_settings(with_cache_in(settings, folder))}
    for kind in KINDS:
        reply = run_fresh(f"{__name__}:start_once", request, environment=empty_caches(folder))
        if reply.outcome != "done":
            raise EngineError(f"the {kind} start: {reply.reason}")
        yield kind, reply.value


def _figures(kind: str, starts: list[dict[str, Any]]) -> Iterator[Figure]:
    for phase in starts[0]["seconds"]:
        seconds = tuple(start["seconds"].get(phase, 0.0) for start in starts)
        yield Figure(f"{kind}: {phase}", "s", seconds)


def _counts(kind: str, start: dict[str, Any]) -> str:
    return (
        f"{kind}: {start['compiled']} units were compiled, "
        f"{start['from the cache']} came from the engine's cache"
    )
