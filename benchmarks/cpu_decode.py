"""Decode speed on the CPU beside transformers' own `generate`, in one run.

Method: the demo model (or --model) in float32, greedy, end tokens ignored, fresh random prompts
in every round. Each round measures both engines in turn, so that a machine whose speed drifts
slows both; the figures are medians over rounds, after one warm-up round. Times are wall time of
the offline call. "decode tok/s" is (out - 1) tokens of all streams over the time from a run that
makes `out` tokens less one that makes a single token; "out tok/s" is all tokens over the whole
time. The floor is the bytes of the weights over the measured read bandwidth, per step.

    python benchmarks/cpu_decode.py --json results.json
    python benchmarks/cpu_decode.py --compilation-mode none --cudagraph-mode none
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine import LLM, CompilationConfig, SamplingParams

Prompts = list[list[int]]


def read_bandwidth(threads: int) -> float:
    """Return bytes per second of a sum over memory far larger than the caches."""
    torch.set_num_threads(threads)
    data = torch.ones(1 << 27)
    data.sum()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - start)
    return data.numel() * 4 / statistics.median(times)


def make_prompts(count: int, length: int, vocab: int) -> Prompts:
    """Return fresh random prompts; ids below 100 are left out (special tokens)."""
    prompts: Prompts = torch.randint(100, vocab, (count, length)).tolist()
    return prompts


def engine_runner(llm: LLM) -> Callable[[Prompts, int], list[list[int]]]:
    """Return a function that continues prompts with the engine."""

    def run(prompts: Prompts, new: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        results = llm.generate(prompts, params, progress=False)
        return [result.outputs[0].token_ids for result in results]

    return run


def transformers_runner(llm: LLM) -> Callable[[Prompts, int], list[list[int]]]:
    """Return a function that continues prompts with transformers, on the same weights."""
    model = reference_model(llm)

    def run(prompts: Prompts, new: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            made = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
            )
        tokens: list[list[int]] = made[:, ids.shape[1] :].tolist()
        return tokens

    return run


def reference_model(llm: LLM) -> Any:
    """Load transformers' implementation with the very tensors that the engine reads."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    checkpoint = llm.core.checkpoint
    model = AutoModelForCausalLM.from_config(checkpoint.config, dtype=torch.float32).eval()
    state = dict(checkpoint.loader.tensors(checkpoint.path, checkpoint.config))
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        eos_token_id=llm.core.end_token_ids[0], pad_token_id=0, do_sample=False
    )
    return model


def timed(run: Callable[[Prompts, int], Any], prompts: Prompts, new: int) -> float:
    """Return the wall seconds of one call."""
    start = time.perf_counter()
    run(prompts, new)
    return time.perf_counter() - start


def measure(
    runners: dict[str, Callable[[Prompts, int], Any]],
    *,
    streams: int,
    prompt: int,
    new: int,
    rounds: int,
    vocab: int,
) -> dict[str, dict[str, Any]]:
    """Return the figures of each engine for one number of streams."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in runners}
    for round_number in range(rounds + 1):
        for name, run in runners.items():
            first = timed(run, make_prompts(streams, prompt, vocab), 1)
            whole = timed(run, make_prompts(streams, prompt, vocab), new)
            if round_number:
                samples[name].append((first, whole))
    figures = {}
    for name, pairs in samples.items():
        decode = [streams * (new - 1) / max(whole - first, 1e-9) for first, whole in pairs]
        out = [streams * new / whole for _, whole in pairs]
        figures[name] = {
            "decode_tok_s": statistics.median(decode),
            "decode_spread": [min(decode), max(decode)],
            "out_tok_s": statistics.median(out),
            "first_token_s": statistics.median(first for first, _ in pairs),
        }
    return figures


def main() -> int:
    """Run the comparison, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--compilation-mode")
    parser.add_argument("--cudagraph-mode")
    parser.add_argument("--backend")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chosen = CompilationConfig(
        mode=args.compilation_mode, cudagraph_mode=args.cudagraph_mode, backend=args.backend
    )
    start = time.perf_counter()
    llm = LLM(
        args.model,
        device="cpu",
        dtype="float32",
        threads=args.threads,
        enable_prefix_caching=False,
        compilation_config=chosen,
    )
    ready = time.perf_counter() - start
    config = llm.resolution.config
    weights = 4 * llm.core.num_parameters
    bandwidth = read_bandwidth(config.threads)
    runners: dict[str, Callable[[Prompts, int], Any]] = {"engine": engine_runner(llm)}
    if not args.no_peer:
        runners["transformers"] = transformers_runner(llm)
    in_force = config.compilation_config
    report: dict[str, Any] = {
        "mode": [str(in_force.mode), str(in_force.cudagraph_mode), str(in_force.backend)],
        "threads": config.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "ready_s": ready,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "floor_single_tok_s": bandwidth / weights,
        "streams": {},
    }
    print(f"mode {report['mode']}, {config.threads} threads, ready in {ready:.1f} s")
    print(f"floor of one stream: {bandwidth / weights:.1f} tok/s ({bandwidth / 1e9:.1f} GB/s read)")
    for streams in args.streams:
        figures = measure(
            runners,
            streams=streams,
            prompt=args.prompt,
            new=args.new,
            rounds=args.rounds,
            vocab=llm.core.vocab_size,
        )
        report["streams"][streams] = figures
        for name, row in figures.items():
            print(
                f"{streams:3d} streams  {name:13s} decode {row['decode_tok_s']:7.1f} tok/s  "
                f"out {row['out_tok_s']:7.1f} tok/s  first token {row['first_token_s']:.2f} s"
            )
    llm.close()
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
