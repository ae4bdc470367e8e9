"""Seconds of a start and of its compile phase, cold and warm, by compile mode.

Method: each start is a process of its own, with the model's weights read before the clock of the
compile phase starts; imports aren't counted. Cold: the artifact store, inductor's own cache and its
precompiled header are empty. Warm: the store is the one that the cold start filled, everything
else is empty again. `torch.compile` of the whole model (`stock_torch_compile`) keeps nothing in
the store, so its warm start is given inductor's own cache instead. The machine should be idle;
the rounds alternate between the modes, and the figures are medians.

With `--shape`, random weights of a shape start on a GPU in bfloat16 with 51 capture sizes, and a
warm start finds all that the cold one left, as a second start on one machine does.

    python benchmarks/compile_start.py --rounds 3 --json results.json
    python benchmarks/compile_start.py --shape llama-3.2-1b --shape qwen3-0.6b
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
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

MODES = ("vllm_compile", "dynamo_trace_once", "stock_torch_compile")
LIBRARIES = ("torch", "transformers.modeling_utils", "torch._inductor.compile_fx")
"""Imported before the clock of a start begins."""
SHAPES = Path(__file__).parent / "shapes"
_OWN_CACHE = frozenset({"stock_torch_compile"})


def settings(model: str | None, shape: str | None) -> dict[str, Any]:
    """Return what an engine is started with, besides its mode."""
    if shape is None:
        return {"model": model, "device": "cpu"}
    return {
        "model": str(SHAPES / shape),
        "device": "cuda",
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer": True,
        "max_model_len": 2048,
        "max_num_seqs": 512,
    }


def start_once(mode: str, store: Path, model: str | None, shape: str | None) -> dict[str, Any]:
    """Start an engine in this process and return where the time went."""
    begun = time.perf_counter()
    for library in LIBRARIES:
        import_module(library)
    imports = time.perf_counter() - begun
    from engine import LLM, CompilationConfig
    from engine.events import CompiledUnit, Event

    units = list[CompiledUnit]()

    def observe(event: Event) -> None:
        if isinstance(event, CompiledUnit):
            units.append(event)

    chosen = CompilationConfig(mode=mode, backend="inductor", cache_dir=store)
    with LLM(compilation_config=chosen, on_event=observe, **settings(model, shape)) as llm:
        ledger = llm.core.ledger
    return {
        "imports_s": imports,
        "ready_s": ledger.seconds,
        **{f"{phase}_phase_s": seconds for phase, seconds in ledger.phases.items()},
        **{f"compile_{phase}_s": seconds for phase, seconds in ledger.compile_phases.items()},
        "units": len(units),
        "units_s": sum(unit.seconds for unit in units),
        "from_store": sum(unit.cached for unit in units),
    }


class Starts:
    """Starts engines of one model in fresh processes.

    Args:
        model: folder or file; the demo model when omitted.
        shape: a shape to start on a GPU instead.
    """

    def __init__(self, model: str | None, shape: str | None) -> None:
        self._model, self._shape = model, shape

    def pair(self, mode: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Start twice, with nothing in the caches and with what is kept."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            store, own, other = (Path(folder) / name for name in ("store", "own", "other"))
            own.mkdir()
            other.mkdir()
            yield "cold", self._start(mode, store, own)
            kept = own if self._shape is not None or mode in _OWN_CACHE else other
            yield "warm", self._start(mode, store, kept)

    def _start(self, mode: str, store: Path, compilers: Path) -> dict[str, Any]:
        environment = {
            **os.environ,
            # The precompiled header lies in a folder of the temporary directory, beside the cache.
            "TMPDIR": str(compilers),
            "TORCHINDUCTOR_CACHE_DIR": str(compilers / "cache"),
            "TRITON_CACHE_DIR": str(compilers / "triton"),
        }
        command = [sys.executable, __file__, "--one", mode, "--store", str(store)]
        for flag, value in (("--model", self._model), ("--shape", self._shape)):
            command += [flag, value] if value is not None else []
        run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        measured: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return measured


def measure(rounds: int, starts: Starts, modes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return medians by mode, cold and warm."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for mode in modes:
            for kind, run in starts.pair(mode):
                found.setdefault(f"{mode} {kind}", []).append(run)
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }


def main() -> int:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="model folder or file; the demo model by default")
    parser.add_argument("--shape", action="append", help="a shape to start on a GPU; repeatable")
    parser.add_argument("--modes", nargs="+", default=MODES)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes: list[str | None] = args.shape or [None]
    if args.one:
        print(json.dumps(start_once(args.one, args.store, args.model, shapes[0])))
        return 0
    import torch

    whole = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    for shape in shapes:
        figures = measure(args.rounds, Starts(args.model, shape), args.modes)
        for name, row in figures.items():
            print(
                f"{shape or 'demo model'} {name:26s} compile phase {row['compile_phase_s']:6.1f} s"
                f"   ready {row['ready_s']:6.1f} s   {row['units']:.0f} compiled graphs, "
                f"{row['from_store']:.0f} from the store",
                flush=True,
            )
        whole[shape or "starts"] = figures
        if args.json:
            args.json.write_text(json.dumps(whole, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
