"""CUDA graphs as a graph device."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch

from engine.strategies import ModelCall


class _SideStream:
    """What all recordings of a device share.

    One stream for all, since cuBLAS keeps 32 MiB for every stream that it was ever used on.

    Args:
        device: the index of the device.
    """

    def __init__(self, device: int) -> None:
        self.stream = torch.cuda.Stream(device)
        self.lock = threading.Lock()
        # torch 2.11's allocator of pinned memory asks a graph whose recording failed about every
        # later allocation, so such a graph may not be freed.
        self.failed: list[torch.cuda.CUDAGraph] = []


_side_stream = lru_cache(_SideStream)


class _Pool:
    """Memory that graphs share, kept by an empty graph for as long as this object lives.

    Without one, a pool whose only graph is freed can't be recorded into again. To be made on the
    side stream.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._keeper = torch.cuda.CUDAGraph()
        self._keeper.capture_begin(pool=self.handle, capture_error_mode="thread_local")
        _end(self._keeper)


class CudaGraphDevice:
    """Records CUDA graphs into one private pool, on a side stream."""

    name = "cuda"

    def __init__(self) -> None:
        self._side = _side_stream(torch.cuda.current_device())
        # The last one is recorded into; those before it hold graphs from before a failure.
        self._pools: list[_Pool] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Enter the side stream; a recording that an exception left open is ended."""
        with self._side.lock:
            yield from self._recording()

    def _recording(self) -> Iterator[None]:
        torch.cuda.synchronize()
        # A collection could destroy another engine's graphs or events, which no capture allows.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(self._side.stream):
                if not self._pools:
                    self._pools.append(_Pool())
                try:
                    yield
                finally:
                    # On this stream still: a capture ends only where it began.
                    self._abandon()
        finally:
            if collecting:
                gc.enable()
            torch.cuda.synchronize()

    def begin(self) -> None:
        """Start recording."""
        self._graph = torch.cuda.CUDAGraph()
        pool = self._pools[-1].handle
        self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")

    def end(self) -> torch.cuda.CUDAGraph | None:
        """Stop recording; None when no kernel was launched since `begin`."""
        graph = self._graph
        if graph is None:
            raise RuntimeError("no recording is in force")
        empty = _end(graph)
        self._graph = None
        return None if empty else graph

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a view of the tensor's memory that doesn't own it."""
        return torch.as_tensor(_Address(tensor), device=tensor.device).view(tensor.dtype)

    def adopt(self, call: ModelCall, *, compiled: bool) -> ModelCall:
        """Return the callable: whatever it launches on the stream is recorded."""
        del compiled
        return call

    def memory(self) -> int:
        """Return the bytes of the pool's segments."""
        pools = {tuple(pool.handle) for pool in self._pools}
        segments = torch.cuda.memory_snapshot()
        mine = (s for s in segments if tuple(s.get("segment_pool_id", ())) in pools)
        return sum((int(segment["total_size"]) for segment in mine), start=0)

    def _abandon(self) -> None:
        """End a recording that an exception left open, whatever state it is in."""
        graph, self._graph = self._graph, None
        if graph is None:
            return
        try:
            graph.capture_end()
        except RuntimeError:
            # The stream no longer records, but torch 2.11 stops here: its allocator still sends
            # the stream's memory to the pool, that of pinned memory refuses another recording into
            # the pool for good, and its random generators wait for the end of a recording.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(  # noqa: SLF001 - it has no public name
                    self._side.stream.device_index, self._pools[-1].handle
                )
            self._side.failed.append(graph)
            self._pools.append(_Pool())


def _end(graph: torch.cuda.CUDAGraph) -> bool:
    """Stop recording a graph; say whether it is empty, of which torch only warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.capture_end()
    return any("CUDA Graph is empty" in str(warning.message) for warning in caught)


class _Address:
    """A tensor's memory by address only, in the form that `torch.as_tensor` reads.

    The interface has no bfloat16, so elements are passed as integers of the same width.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        width = tensor.element_size()
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * width for stride in tensor.stride()),
            "typestr": f"<i{width}" if width > 1 else "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }
