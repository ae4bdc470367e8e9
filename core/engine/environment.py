"""What a compiled artifact depends on besides the graph and the plugins: versions and hardware."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from pathlib import Path

import torch


def environment_factors(device: torch.device) -> dict[str, str]:
    """Return the versions and the device identity that go into every cache key."""
    return {
        "python": platform.python_version(),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "machine": platform.machine(),
        "device": _accelerator(device) or "cpu",
        # Host code is compiled for this very processor, also beside an accelerator.
        "cpu": f"{torch.backends.cpu.get_cpu_capability()} {_cpu_flags()}",
    }


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def _accelerator(device: torch.device) -> str:
    if device.type == "cpu":
        return ""
    if device.type != "cuda":
        return device.type
    facts = torch.cuda.get_device_properties(device)
    runtime = torch.version.cuda or torch.version.hip
    return f"cuda {facts.name} {facts.major}.{facts.minor} {runtime}"


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
