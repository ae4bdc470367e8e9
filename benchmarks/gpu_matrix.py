"""Every compile mode with every graph mode and backend on a GPU: tokens first, then time.

Method: one engine after another in this process, dummy weights (the same seed, so the same
tokens are expected), fresh random prompts from one seed, greedy, end tokens ignored. The tokens
of each cell are compared with those of the reference cell (the first: everything off). In
float32 they must be equal; in bfloat16 near-ties of random weights may differ, and the share of
equal tokens is printed. ms/step is (time of `--new` tokens - time of one token) / (new - 1), the
median of `--rounds`. The floor is weight bytes / copy bandwidth, both measured here.

    python benchmarks/gpu_matrix.py --shape llama-3.2-1b --batch 1 32
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from engine import LLM, CompilationConfig, EngineError, Registry, SamplingParams

SHAPES = Path(__file__).parent / "shapes"


def copy_bandwidth() -> float:
    """Return bytes per second (read plus written) of a large copy on the device."""
    source = torch.empty(1 << 30, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    target.copy_(source)
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return float(2 * source.numel() * 4 / statistics.median(times))


def generate(llm: LLM, prompts: list[list[int]], new: int) -> tuple[float, list[list[int]]]:
    """Return wall seconds and tokens of one call."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    results = llm.generate(prompts, params, progress=False)
    torch.cuda.synchronize()
    return time.perf_counter() - start, [r.outputs[0].token_ids for r in results]


def run_cell(args: argparse.Namespace, names: tuple[str, str, str]) -> dict[str, Any]:
    """Start one engine, check and time it, and take it down."""
    mode, graphs, backend = names
    cell: dict[str, Any] = {"mode": mode, "graphs": graphs, "backend": backend}
    start = time.perf_counter()
    llm = LLM(
        str(SHAPES / args.shape),
        load_format="dummy",
        skip_tokenizer=True,
        dtype=args.dtype,
        attention=args.attention,
        max_model_len=args.prompt + args.new,
        max_num_seqs=max(args.batch),
        enable_prefix_caching=False,
        hf_overrides={"num_hidden_layers": args.layers} if args.layers else {},
        compilation_config=CompilationConfig(
            mode=mode,
            cudagraph_mode=graphs,
            backend=backend,
            max_cudagraph_capture_size=args.max_capture or None,
        ),
    )
    cell["ready_s"] = time.perf_counter() - start
    generator = torch.Generator().manual_seed(0)
    try:
        for batch in args.batch:
            vocab = llm.core.vocab_size
            cell[f"ms_{batch}"], cell[f"tokens_{batch}"] = time_batch(
                llm, args, torch.randint(vocab, (batch, args.prompt), generator=generator).tolist()
            )
        stats = llm.core.stats()
        cell["steps"] = stats.steps
        cell["startup"] = stats.startup_seconds
        cell["late_compiles"] = stats.late_compiles
        cell["weight_bytes"] = llm.core.num_parameters * getattr(torch, args.dtype).itemsize
    finally:
        llm.close()
        del llm
        gc.collect()
        torch.cuda.empty_cache()
    cell["left_mib"] = torch.cuda.memory_allocated() / 2**20
    return cell


def time_batch(
    llm: LLM, args: argparse.Namespace, prompts: list[list[int]]
) -> tuple[float, list[list[int]]]:
    """Return ms per decode step and the tokens."""
    _, tokens = generate(llm, prompts, args.new)
    times = []
    for _ in range(args.rounds):
        first, _ = generate(llm, prompts, 1)
        whole, _ = generate(llm, prompts, args.new)
        times.append(1e3 * (whole - first) / (args.new - 1))
    return float(statistics.median(times)), tokens


def agreement(cell: dict[str, Any], reference: dict[str, Any], batches: list[int]) -> float:
    """Return the share of tokens that equal the reference's."""
    pairs = [
        (a, b)
        for batch in batches
        for mine, theirs in zip(cell[f"tokens_{batch}"], reference[f"tokens_{batch}"], strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    return float(sum(a == b for a, b in pairs)) / len(pairs)


def main() -> int:
    """Run the matrix, print a table, write JSON; exit 1 when a float32 cell differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.2-1b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-capture", type=int, default=0)
    parser.add_argument("--modes", nargs="+")
    parser.add_argument("--graphs", nargs="+")
    parser.add_argument("--backends", nargs="+")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    registry = Registry()
    modes = args.modes or registry.names("compile_modes")
    graphs = args.graphs or registry.names("cudagraph_modes")
    backends = args.backends or registry.names("backends")
    bandwidth = copy_bandwidth()
    cells: list[dict[str, Any]] = []
    for mode in modes:
        for backend in backends if mode != "none" else backends[:1]:
            for graph in graphs:
                try:
                    cell = run_cell(args, (mode, graph, backend))
                except EngineError as error:
                    print(f"{mode:20s} {graph:18s} {backend:10s} refused: {error}", flush=True)
                    continue
                cells.append(cell)
                cell["equal"] = agreement(cell, cells[0], args.batch)
                floor = 1e3 * cell["weight_bytes"] / bandwidth
                times = "  ".join(
                    f"b{b} {cell[f'ms_{b}']:7.3f} ms ({cell[f'ms_{b}'] / floor:4.1f}x)"
                    for b in args.batch
                )
                print(
                    f"{mode:20s} {graph:18s} {backend:10s} ready {cell['ready_s']:6.1f} s  {times}"
                    f"  equal {cell['equal']:.4f}  late {cell['late_compiles']}",
                    flush=True,
                )
    if args.json:
        for cell in cells:
            for batch in args.batch:
                del cell[f"tokens_{batch}"]
        report = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "copy_gb_s": bandwidth / 1e9,
            "arguments": {k: v for k, v in vars(args).items() if k != "json"},
            "cells": cells,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    exact = args.dtype == "float32"
    return int(exact and any(cell["equal"] < 1 for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
