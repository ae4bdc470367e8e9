"""Every compile mode with every graph mode and backend on a GPU: tokens first, then time.

Method: one engine after another in this process, dummy weights (the same seed, so the same
tokens are expected), fresh random prompts from one seed, greedy, end tokens ignored. The first
cell has everything off. In float32 the tokens of every other must equal its own. In bfloat16
near-ties of random weights may differ, so the share of equal tokens is printed, and
log-probabilities are compared with those of a float32 engine: of 1,016 positions of prompts, and
of 512 decoded tokens as far as both engines chose the same. A cell may be 1.5 times as far from
float32 as the first cell is. ms/step is (time of `--new` tokens - time of one token) / (new - 1),
the median of `--rounds`. The floor is weight bytes / copy bandwidth, both measured here.

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
from decode_timing import copy_bandwidth, decode_times, generate

from engine import LLM, CompilationConfig, EngineError, Registry, SamplingParams

SHAPES = Path(__file__).parent / "shapes"
_ALLOWED = 2 << 20
"""Bytes by which memory may grow: the smallest piece that the allocator asks the driver for."""
_FARTHER = 1.5
"""How many times as far from float32 as the cell with everything off a cell may be."""
Decoded = list[tuple[list[int], list[float]]]
"""Tokens of each answer and their log-probabilities."""


def count_steps(llm: LLM) -> dict[tuple[str, int], int]:
    """Return how many steps ran so far, by kind and padded tokens."""
    counts: dict[tuple[str, int], int] = {}
    for label, number in llm.core.stats().steps.items():
        _, kind, padded, _ = label.split("|", 3)
        counts[kind, int(padded)] = counts.get((kind, int(padded)), 0) + number
    return counts


def expected_steps(
    graphs: str, sizes: tuple[int, ...], max_num_seqs: int, prompts: list[int], decodes: list[int]
) -> dict[tuple[str, int], int]:
    """Return the steps that must have run, for steps of these live tokens, by kind and padding."""
    counts: dict[tuple[str, int], int] = {}
    for live, decode in [*((n, False) for n in prompts), *((n, True) for n in decodes)]:
        kind = {"none": "eager", "piecewise": "piecewise"}.get(graphs, "full")
        if not decode and graphs in ("full_decode_only", "full_and_piecewise"):
            kind = "eager" if graphs == "full_decode_only" else "piecewise"
        allowed = [size for size in sizes if size >= live]
        if decode and kind == "full" and graphs != "full":
            allowed = [size for size in allowed if size <= max_num_seqs]
        padded = min(allowed, default=live)
        key = ("eager", live) if kind == "eager" or not allowed else (kind, padded)
        counts[key] = counts.get(key, 0) + 1
    return counts


def check_steps(llm: LLM, args: argparse.Namespace, graphs: str) -> str:
    """Say how the steps differ from what must be; empty if they don't."""
    config = llm.resolution.config
    prompts, decodes = [], []
    for batch in args.batch:
        prompts += [batch * args.prompt] * (1 + 2 * args.rounds)
        decodes += [batch] * ((1 + args.rounds) * (args.new - 1))
    sizes = config.compilation_config.cudagraph_capture_sizes or ()
    wanted = expected_steps(graphs, sizes, config.max_num_seqs, prompts, decodes)
    found = count_steps(llm)
    return "" if found == wanted else f"steps {found}, expected {wanted}"


def leaked(llm: LLM, args: argparse.Namespace) -> int:
    """Return the bytes by which the device's memory grows over many decode steps."""
    prompt = [[1, 2, 3]]
    generate(llm, prompt, 8)
    before = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    generate(llm, prompt, args.leak)
    after = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    return max(before[0] - after[0], after[1] - before[1])


def log_probabilities(llm: LLM) -> tuple[list[float], Decoded]:
    """Return those of eight fixed prompts' tokens, and of 64 tokens decoded after each."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(1000, (8, 128), generator=generator).tolist()
    params = SamplingParams(
        temperature=0, max_tokens=64, prompt_logprobs=0, logprobs=0, ignore_eos=True
    )
    results = llm.generate(prompts, params, progress=False)
    of_prompts = [p[0].logprob for r in results for p in r.prompt_logprobs or () if p]
    answers = [r.outputs[0] for r in results]
    return of_prompts, [(a.token_ids, [t[0].logprob for t in a.logprobs or ()]) for a in answers]


def deviation(cell: dict[str, Any], reference: dict[str, Any]) -> float:
    """Return the largest difference of log-probabilities between two cells."""
    pairs: list[tuple[float, float]] = list(
        zip(cell["logprobs"][0], reference["logprobs"][0], strict=True)
    )
    for mine, theirs in zip(cell["logprobs"][1], reference["logprobs"][1], strict=True):
        for token, value, other, reference_value in zip(*mine, *theirs, strict=True):
            if token != other:
                break
            pairs.append((value, reference_value))
    return max(abs(a - b) for a, b in pairs)


def run_cell(args: argparse.Namespace, names: tuple[str, str, str]) -> dict[str, Any]:
    """Start one engine, check and time it, and take it down."""
    mode, graphs, backend = names
    cell: dict[str, Any] = {"mode": mode, "graphs": graphs, "backend": backend}
    start = time.perf_counter()
    llm = start_engine(args, names, args.dtype)
    cell["ready_s"] = time.perf_counter() - start
    generator = torch.Generator().manual_seed(0)
    try:
        for batch in args.batch:
            vocab = llm.core.vocab_size
            cell[f"ms_{batch}"], cell[f"tokens_{batch}"] = time_batch(
                llm, args, torch.randint(vocab, (batch, args.prompt), generator=generator).tolist()
            )
        cell["wrong_steps"] = check_steps(llm, args, graphs)
        cell["steps"] = {f"{kind} {n}": count for (kind, n), count in count_steps(llm).items()}
        cell["startup"] = llm.core.ledger.phases
        cell["graph_bytes"] = llm.core.memory.graphs if llm.core.memory else 0
        cell["logprobs"] = log_probabilities(llm)
        cell["leaked_bytes"] = leaked(llm, args) if args.leak else 0
        cell["late_compiles"] = llm.core.stats().late_compiles
        cell["weight_bytes"] = llm.core.num_parameters * getattr(torch, args.dtype).itemsize
    finally:
        llm.close()
        del llm
        gc.collect()
        torch.cuda.empty_cache()
    cell["left_mib"] = torch.cuda.memory_allocated() / 2**20
    return cell


def float32_reference(args: argparse.Namespace) -> dict[str, Any]:
    """Return the log-probabilities of an engine in float32 with everything off."""
    with start_engine(args, ("none", "none", "eager"), "float32") as llm:
        return {"logprobs": log_probabilities(llm)}


def start_engine(args: argparse.Namespace, names: tuple[str, str, str], dtype: str) -> LLM:
    """Start the engine of one cell."""
    mode, graphs, backend = names
    return LLM(
        str(SHAPES / args.shape),
        load_format="dummy",
        skip_tokenizer=True,
        dtype=dtype,
        attention=args.attention,
        max_model_len=max(args.prompt + args.new, args.leak + 8, 192),
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


def time_batch(
    llm: LLM, args: argparse.Namespace, prompts: list[list[int]]
) -> tuple[float, list[list[int]]]:
    """Return ms per decode step and the tokens."""
    _, tokens = generate(llm, prompts, args.new)
    times = decode_times(llm, lambda: prompts, args.new, args.rounds)
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


def print_cell(args: argparse.Namespace, cell: dict[str, Any], bandwidth: float) -> None:
    """Print the line of a cell."""
    floor = 1e3 * cell["weight_bytes"] / bandwidth
    times = "  ".join(
        f"b{b} {cell[f'ms_{b}']:7.3f} ms ({cell[f'ms_{b}'] / floor:4.1f}x)" for b in args.batch
    )
    print(
        f"{cell['mode']:20s} {cell['graphs']:18s} {cell['backend']:10s}"
        f" ready {cell['ready_s']:6.1f} s  {times}"
        f"  equal {cell['equal']:.4f}  from float32 {cell['deviation']:.1e}"
        f"  graphs {cell['graph_bytes'] / 2**20:.0f} MiB  late {cell['late_compiles']}"
        f"  leaked {cell['leaked_bytes']}  {cell['wrong_steps'] or 'steps ok'}",
        flush=True,
    )


def save(args: argparse.Namespace, cells: list[dict[str, Any]], bandwidth: float) -> None:
    """Write what was measured so far, without the tokens."""
    kept = [
        {key: value for key, value in cell.items() if not key.startswith(("tokens_", "logprobs"))}
        for cell in cells
    ]
    report = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_gb_s": bandwidth / 1e9,
        "arguments": {key: value for key, value in vars(args).items() if key != "json"},
        "cells": kept,
    }
    args.json.write_text(json.dumps(report, indent=1) + "\n")


def combinations(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Return the cells, everything off first."""
    registry = Registry()
    names = [
        (mode, graphs, backend)
        for mode in args.modes or registry.names("compile_modes")
        for backend in args.backends or registry.names("backends")
        for graphs in args.graphs or registry.names("cudagraph_modes")
    ]
    return sorted(names, key=lambda name: (name[0] != "none", name[1] != "none"))


def main() -> int:
    """Run the matrix, print a table, write JSON; exit 1 when a cell isn't what it must be."""
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
    parser.add_argument("--leak", type=int, default=0, help="steps over which memory is watched")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bandwidth = copy_bandwidth()
    exact = args.dtype == "float32"
    reference = None if exact else float32_reference(args)
    cells: list[dict[str, Any]] = []
    for names in combinations(args):
        try:
            cell = run_cell(args, names)
        except EngineError as error:
            print(f"{' '.join(names)} refused: {error}", flush=True)
            continue
        cells.append(cell)
        cell["equal"] = agreement(cell, cells[0], args.batch)
        cell["deviation"] = deviation(cell, reference or cells[0])
        print_cell(args, cell, bandwidth)
        if args.json:
            save(args, cells, bandwidth)
    bound = 0.0 if exact else _FARTHER * cells[0]["deviation"]
    faults = [
        (cell["equal"] < 1 if exact else cell["deviation"] > bound)
        or cell["late_compiles"]
        or cell["wrong_steps"]
        or cell["leaked_bytes"] > _ALLOWED
        for cell in cells
    ]
    return int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
