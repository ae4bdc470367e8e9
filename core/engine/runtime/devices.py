"""What the device is and can do."""

from __future__ import annotations

import os

import torch

from engine.errors import ConfigError
from engine.facts import DeviceFacts
from engine.graph_device import GraphDevice


def detect_device(
    requested: str, graph_device: str = "auto", threads: int | None = None
) -> DeviceFacts:
    """Return the facts of the requested device, or of the best one found for `auto`.

    Raises:
        ConfigError: the device doesn't exist here.
    """
    kind = requested
    if requested == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    recorder = None if graph_device == "auto" else graph_device
    if recorder not in (None, "simulated", "cuda"):
        raise ConfigError(f"graph_device={recorder!r}: unknown; choose auto, cuda or simulated")
    if kind == "cpu":
        if recorder == "cuda":
            raise ConfigError(
                "graph_device='cuda': device cpu has none; use --device cuda, or --graph-device "
                "simulated to test graph modes"
            )
        count = threads or len(os.sched_getaffinity(0))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return DeviceFacts("cpu", total_memory=memory, graph_device=recorder, num_threads=count)
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                "device='cuda': torch sees no CUDA device; use --device cpu, or install a CUDA "
                "build of torch and a driver"
            )
        if recorder == "simulated":
            raise ConfigError(
                "graph_device='simulated': it records CPU operators only; use --device cpu, or "
                "leave it out for real graphs"
            )
        properties = torch.cuda.get_device_properties(0)
        return DeviceFacts(
            "cuda",
            name=properties.name,
            total_memory=properties.total_memory,
            graph_device=recorder or "cuda",
            capability=(properties.major, properties.minor),
            num_threads=threads or 1,
        )
    raise ConfigError(f"device={requested!r}: unknown; choose auto, cpu or cuda")


def make_graph_device(name: str | None) -> GraphDevice | None:
    """Return what records graphs, by the name that the device facts carry; None for None.

    Raises:
        ConfigError: there is no such graph device.
    """
    if name is None:
        return None
    if name == "cuda":
        from engine.runtime.cuda_graphs import CudaGraphDevice

        return CudaGraphDevice()
    if name == "simulated":
        from engine.runtime.simulated_graphs import SimulatedGraphDevice

        return SimulatedGraphDevice()
    raise ConfigError(f"graph_device={name!r}: unknown; choose auto, cuda or simulated")


def bytes_outside_torch() -> int:
    """Return the bytes of the CUDA device that are in use and aren't torch's tensors.

    Other processes, the driver's context for this one, and what it keeps for each graph.
    """
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())
