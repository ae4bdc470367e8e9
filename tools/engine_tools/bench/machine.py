"""What figures depend on besides the settings: versions, hardware, bandwidth, memory."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine import LLM

_BUFFER = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Bytes of each buffer that is copied: far more than the caches hold."""
_COPIES = 5


def client_facts() -> dict[str, str]:
    """Return the versions and the processor of this machine; loads no torch."""
    return {
        "engine": _engine_version(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
    }


def machine_facts(device: str) -> dict[str, str]:
    """Return versions and hardware, as they are in the keys of artifacts and in words."""
    import torch

    from engine.environment import environment_factors

    factors = environment_factors(torch.device(device))
    facts = {**client_facts(), **{name: factors[name] for name in _FACTORS}}
    facts["threads"] = str(torch.get_num_threads())
    if device == "cuda":
        facts["device memory"] = f"{torch.cuda.get_device_properties(0).total_memory} bytes"
    return facts


_FACTORS = ("torch", "triton", "transformers", "device")


def copy_bandwidth(device: str, threads: int | None = None) -> float:
    """Return bytes per second, read plus written, of a large copy within the device's memory.

    Args:
        device: its type.
        threads: that operators use on the CPU; left as they are when omitted.
    """
    import torch

    if threads and device == "cpu":
        torch.set_num_threads(threads)
    source = torch.ones(_BUFFER.get(device, 1 << 28), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(1 + _COPIES):
        _wait(device)
        begun = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - begun)
    moved = 2 * source.numel()
    del source, target
    if device == "cuda":
        torch.cuda.empty_cache()
    return moved / statistics.median(times[1:])


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""What configurations call the number of experts of a layer."""


def streamed_bytes(llm: LLM) -> int:
    """Return the bytes of the weights that one decode step must read; 0 if nobody knows.

    Of an embedding table that isn't the output layer as well, a step reads a few rows. Of experts
    it reads those that its tokens are sent to, which can't be told beforehand.
    """
    import torch

    core = llm.core
    config, facts = core.checkpoint.config, core.checkpoint.facts
    if any((getattr(config, name, None) or 1) > 1 for name in _EXPERTS):
        return 0
    tied = getattr(config, "tie_word_embeddings", True)
    rows = 0 if tied else facts.vocab_size * facts.hidden_size
    itemsize: int = getattr(torch, core.resolution.config.dtype).itemsize
    return (core.num_parameters - rows) * itemsize


def peak_memory(device: str) -> dict[str, int]:
    """Return the peaks of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if device == "cuda":
        import torch

        peaks["device"] = torch.cuda.max_memory_reserved()
    return peaks


def settings_in_force(llm: LLM) -> dict[str, Any]:
    """Return every setting as the engine resolved it."""
    dumped: dict[str, Any] = llm.resolution.config.model_dump(mode="json")
    return dumped


def _engine_version() -> str:
    try:
        return metadata.version("modular-engine")
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
