"""Seconds that compiling adds to a start, cold and warm, by compile mode.

Method: each start is a process of its own on the CPU, with the model's weights read before the
clock of the compile phase starts. Cold: the artifact store, inductor's own cache and its
precompiled header are empty. Warm: the store is the one that the cold start filled, everything
else is empty again. `torch.compile` of the whole model (`stock_torch_compile`) keeps nothing in
the store, so its warm start is given inductor's own cache instead. The machine should be idle;
the rounds alternate between the modes, and the figures are medians.

    python benchmarks/compile_start.py --rounds 3 --json results.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODES = ("vllm_compile", "dynamo_trace_once", "stock_torch_compile")
_OWN_CACHE = frozenset({"stock_torch_compile"})


def start_once(mode: str, store: Path, model: str | None) -> dict[str, Any]:
    """Start an engine in this process and return what the compile phase took."""
    from engine import LLM, CompilationConfig
    from engine.events import CompiledUnit, Event, PhaseFinished

    seconds, units = 0.0, list[CompiledUnit]()

    def observe(event: Event) -> None:
        nonlocal seconds
        if isinstance(event, PhaseFinished) and event.phase == "compile":
            seconds = event.seconds
        elif isinstance(event, CompiledUnit):
            units.append(event)

    begun = time.perf_counter()
    chosen = CompilationConfig(mode=mode, backend="inductor", cache_dir=store)
    LLM(model, device="cpu", compilation_config=chosen, on_event=observe).close()
    return {
        "compile_phase_s": seconds,
        "ready_s": time.perf_counter() - begun,
        "units": len(units),
        "units_s": sum(unit.seconds for unit in units),
        "from_store": sum(unit.cached for unit in units),
    }


def start(mode: str, store: Path, inductor: Path, model: str | None) -> dict[str, Any]:
    """Start an engine in a fresh process, with these caches."""
    environment = {
        **os.environ,
        # The precompiled header lies in a folder of the temporary directory, beside the cache.
        "TMPDIR": str(inductor),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor / "cache"),
    }
    command = [sys.executable, __file__, "--one", mode, "--store", str(store)]
    if model is not None:
        command += ["--model", model]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return measured


def measure(rounds: int, model: str | None) -> dict[str, dict[str, Any]]:
    """Return medians by mode, cold and warm."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for mode in MODES:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                store, own, other = (Path(folder) / name for name in ("store", "own", "other"))
                own.mkdir()
                other.mkdir()
                found.setdefault(f"{mode} cold", []).append(start(mode, store, own, model))
                kept = own if mode in _OWN_CACHE else other
                found.setdefault(f"{mode} warm", []).append(start(mode, store, kept, model))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }


def main() -> int:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="model folder or file; the demo model by default")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(start_once(args.one, args.store, args.model)))
        return 0
    import torch

    figures = measure(args.rounds, args.model)
    for name, row in figures.items():
        print(
            f"{name:26s} compile phase {row['compile_phase_s']:6.1f} s   ready "
            f"{row['ready_s']:6.1f} s   {row['units']:.0f} compiled graphs, "
            f"{row['from_store']:.0f} from the store"
        )
    if args.json:
        whole = {"torch": torch.__version__, "threads": torch.get_num_threads(), "starts": figures}
        args.json.write_text(json.dumps(whole, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
