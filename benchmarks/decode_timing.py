"""How decode is timed: what many tokens take more than one, for each step between."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from engine import LLM, SamplingParams

Prompts = list[list[int]]


def random_prompts(llm: LLM, count: int, length: int) -> Prompts:
    """Return prompts of random tokens."""
    prompts: Prompts = torch.randint(llm.core.vocab_size, (count, length)).tolist()
    return prompts


def generate(llm: LLM, prompts: Prompts, new: int) -> tuple[float, list[list[int]]]:
    """Return wall seconds and tokens of one call, greedy and with end tokens ignored."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    _wait()
    start = time.perf_counter()
    results = llm.generate(prompts, params, progress=False)
    _wait()
    return time.perf_counter() - start, [r.outputs[0].token_ids for r in results]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def decode_times(llm: LLM, prompts: Callable[[], Prompts], new: int, rounds: int) -> list[float]:
    """Return ms per decode step, of each round; warm the engine up before.

    Args:
        llm: the engine.
        prompts: makes the prompts of one call.
        new: tokens of the long call.
        rounds: how often both calls are timed.
    """
    times = []
    for _ in range(rounds):
        one, _ = generate(llm, prompts(), 1)
        many, _ = generate(llm, prompts(), new)
        times.append(1e3 * (many - one) / (new - 1))
    return times


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
