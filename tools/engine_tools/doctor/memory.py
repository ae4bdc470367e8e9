"""Check of free memory beside what the weights take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.errors import EngineError
from engine_tools.doctor.checkpoint import read_headers
from engine_tools.doctor.finding import Finding, Reporter
from engine_tools.doctor.sizes import show
from engine_tools.doctor.subject import Subject

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CGROUP = Path("/sys/fs/cgroup")


def check_memory(subject: Subject) -> Iterator[Finding]:
    """Compare the weights, and the KV cache if its size was given, with the free memory."""
    say = Reporter("memory")
    device = subject.device
    free = _free_on_gpu(subject) if device == "cuda" else free_memory()
    if free is None:
        yield say.warning(f"{device}: the free memory isn't known", "look at it yourself")
        return
    try:
        needed, how = weight_bytes(subject)
    except (EngineError, OSError):
        yield say.ok(f"{show(free)} free on {device}; the model's size is unknown")
        return
    if needed is None:
        yield say.ok(f"{show(free)} free on {device}; the size of {how} is unknown")
        return
    cache = subject.settings.config.kv_cache_memory or 0
    both = f"weights take {how} {show(needed)}" + (f", the KV cache {show(cache)}" if cache else "")
    what = f"{both}; {show(free)} are free on {device}"
    if needed + cache <= free:
        yield say.ok(what)
        return
    remedy = "free memory, or choose a smaller model or dtype"
    yield say.error(what, f"{remedy}, or a smaller --kv-cache-memory" if cache else remedy)


def weight_bytes(subject: Subject) -> tuple[int | None, str]:
    """Return the bytes that the weights take, and how far that is known.

    Raises:
        EngineError: the model's files are unusable.
    """
    config = subject.settings.config
    if config.load_format == "dummy":
        return None, "random weights"
    if not subject.model.is_dir():
        # A quantised file is unpacked while it is loaded.
        return subject.model.stat().st_size, "at least"
    headers = read_headers(subject.model)
    if config.dtype == "auto":
        return headers.bytes, "about"
    return headers.elements * _BYTES[config.dtype], "about"


def _free_on_gpu(subject: Subject) -> int | None:
    gpus = subject.accelerators.gpus
    return gpus[0].free if gpus else None


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that a new process may take: of the machine, and of its control group.

    Args:
        meminfo: the kernel's account of the machine's memory.
        cgroup: the folder of this process's control group (version 2).
    """
    amounts = []
    try:
        lines = meminfo.read_text().splitlines()
        amounts += [int(n.split()[1]) * 1024 for n in lines if n.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = dict(n.split() for n in (cgroup / "memory.stat").read_text().splitlines())
        # Pages of files that nobody uses are given up when memory is short.
        amounts.append(limit - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        pass  # `max`, or no control group: no limit
    return min(amounts, default=None)
