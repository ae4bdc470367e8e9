"""Times fused operators beside what inductor makes of them; part of passes.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from engine import Registry
from engine.attention import AttentionSpec, Rotation
from engine.ops import add_rms_norm, qk_norm_rope, silu_mul

BLOCK = 16
_MOST_DECODED = 128
"""Requests that decode at once, in the comparison of attention."""
Arguments = tuple[Any, ...]
Way = Callable[..., Any]


class Clock:
    """Times calls on one device.

    Args:
        device: `cuda` or `cpu`.
        replays: how often each set of calls is timed; the median counts.
    """

    def __init__(self, device: str, replays: int) -> None:
        self.device, self.replays = device, replays
        self.l2 = 2**20
        if device == "cuda":
            self.l2 = torch.cuda.get_device_properties(0).L2_cache_size
        size = 2**29 if device == "cuda" else 2**24
        source = torch.ones(size, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        seconds = self.microseconds(target.copy_, [(source,)]) / 1e6
        self.bandwidth = 2 * source.numel() * 4 / seconds

    def microseconds(self, call: Way, sets: list[Arguments]) -> float:
        """Return the median time of one call, over calls on each of the sets."""
        for arguments in sets[:3]:
            call(*arguments)
        return self._on_gpu(call, sets) if self.device == "cuda" else self._on_cpu(call, sets)

    def _on_cpu(self, call: Way, sets: list[Arguments]) -> float:
        times = []
        for _ in range(self.replays):
            start = time.perf_counter()
            for arguments in sets:
                call(*arguments)
            times.append(time.perf_counter() - start)
        return statistics.median(times) / len(sets) * 1e6

    def _on_gpu(self, call: Way, sets: list[Arguments]) -> float:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            # All results live: no call may write where another's output is still in the cache.
            _kept = [call(*arguments) for arguments in sets]
        times = []
        for _ in range(self.replays + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return float(statistics.median(times[2:])) / len(sets) * 1e3

    def sets(self, make: Callable[[], Arguments]) -> list[Arguments]:
        """Return sets of arguments, together larger than the cache unless that takes too many."""
        first = make()
        size = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
        count = min(64, max(16, 2 * self.l2 // max(size, 1) + 1))
        return [first, *(make() for _ in range(count - 1))]


class Layer:
    """The sizes of one layer of a model, and random arguments of those sizes."""

    def __init__(self, config: dict[str, Any], device: str, dtype: torch.dtype) -> None:
        self.hidden, self.inner = config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.depth = config.get("head_dim") or self.hidden // self.heads
        self.norms = config["model_type"] == "qwen3"
        self.device, self.dtype = device, dtype

    def rand(self, *shape: int) -> torch.Tensor:
        """Return random numbers of the layer's dtype."""
        return torch.randn(shape, device=self.device).to(self.dtype)

    def silu_mul(self, tokens: int) -> Arguments:
        """Return arguments of the operator."""
        return (self.rand(tokens, 2 * self.inner),)

    def add_rms_norm(self, tokens: int) -> Arguments:
        """Return arguments of the operator."""
        x, residual = self.rand(2, tokens, self.hidden)
        return x, residual, self.rand(self.hidden), 1e-5

    def qk_norm_rope(self, tokens: int) -> Arguments:
        """Return arguments of the operator: a slice of the projection."""
        total = self.heads + self.kv_heads
        x = self.rand(tokens, total + self.kv_heads, self.depth)[:, :total]
        weights = self.rand(2, self.depth) if self.norms else (None, None)
        cos, sin = self.rand(2, tokens, 1, self.depth)
        return x, *weights, self.heads, 1e-6, cos, sin, True

    def moved(self, name: str, tokens: int) -> int:
        """Return the bytes that an operator must read and write."""
        rotated = (self.heads + self.kv_heads) * self.depth
        numbers: dict[str, int] = {
            "silu_mul": 3 * tokens * self.inner,
            "add_rms_norm": 4 * tokens * self.hidden + self.hidden,
            "qk_norm_rope": 2 * tokens * rotated + 2 * tokens * self.depth,
        }
        return numbers[name] * self.dtype.itemsize


def compiled(reference: Way) -> Way:
    """Return what inductor makes of a reference, with the number of tokens symbolic."""
    torch._dynamo.reset()  # noqa: SLF001 - its only name
    call = torch.compile(reference, fullgraph=True)

    def run(*arguments: Any) -> Any:
        for one in arguments:
            if isinstance(one, torch.Tensor) and one.ndim > 1 and one.shape[0] > 1:
                torch._dynamo.maybe_mark_dynamic(one, 0)  # noqa: SLF001 - its only name
        return call(*arguments)

    return run


def deviation(found: Any, wanted: Any) -> float:
    """Return the largest difference over the largest value."""
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def wide(arguments: Arguments) -> list[Any]:
    return [one.double() if isinstance(one, torch.Tensor) else one for one in arguments]


def operator_rows(
    clock: Clock, name: str, layer: Layer, tokens: list[int]
) -> Iterator[dict[str, Any]]:
    """Check and time each operator for each number of tokens."""
    operators: dict[str, Any] = {
        "silu_mul": silu_mul,
        "add_rms_norm": add_rms_norm,
        "qk_norm_rope": qk_norm_rope,
    }
    for kind, operator in operators.items():
        by_inductor = compiled(operator.reference)
        for count in tokens:
            sets = clock.sets(lambda: getattr(layer, kind)(count))  # noqa: B023 - called at once
            wanted = operator.reference(*wide(sets[0]))
            yield {
                "shape": name,
                "what": kind,
                "tokens": count,
                "error": deviation(operator(*sets[0]), wanted),
                "error inductor": deviation(by_inductor(*sets[0]), wanted),
                "ours µs": clock.microseconds(operator.overload, sets),
                "inductor µs": clock.microseconds(by_inductor, sets),
                "eager µs": clock.microseconds(operator.reference, sets),
                "floor µs": layer.moved(kind, count) / clock.bandwidth * 1e6,
            }


def joined_rows(
    clock: Clock, name: str, layer: Layer, tokens: list[int]
) -> Iterator[dict[str, Any]]:
    """Time one product beside the several that it stands for."""
    query, key = layer.heads * layer.depth, layer.kv_heads * layer.depth
    for kind, sizes in (("q, k, v", [query, key, key]), ("gate, up", [layer.inner] * 2)):

        def apart(x: torch.Tensor, weight: torch.Tensor, sizes: list[int] = sizes) -> Any:
            return [F.linear(x, part) for part in weight.split(sizes)]

        for count in tokens:

            def make(count: int = count, sizes: list[int] = sizes) -> Arguments:
                return layer.rand(count, layer.hidden), layer.rand(sum(sizes), layer.hidden)

            sets = clock.sets(make)
            joined = F.linear(*sets[0]).split(sizes, dim=-1)
            wanted = F.linear(*(one.double() for one in sets[0])).split(sizes, dim=-1)
            yield {
                "shape": name,
                "what": f"joined {kind}",
                "tokens": count,
                "error": deviation(tuple(joined), wanted),
                "error inductor": deviation(tuple(apart(*sets[0])), wanted),
                "ours µs": clock.microseconds(F.linear, sets),
                "eager µs": clock.microseconds(apart, sets),
                "floor µs": sum(t.numel() for t in sets[0])
                * layer.dtype.itemsize
                / clock.bandwidth
                * 1e6,
            }


def attention_rows(
    clock: Clock, name: str, layer: Layer, tokens: list[int], context: int
) -> Iterator[dict[str, Any]]:
    """Time rotation and attention beside rotating attention, in decode."""
    from engine.testing.paged import attention_inputs

    attention: Any = Registry().load("attention", "triton")()
    spec = AttentionSpec(layer.heads, layer.kv_heads, layer.depth, layer.depth**-0.5)
    rotate = compiled(qk_norm_rope.reference)
    width = context // BLOCK + 1
    for count in [n for n in tokens if n <= _MOST_DECODED]:
        tables = [range(1 + row * width, 1 + (row + 1) * width) for row in range(count)]
        shape = attention.cache_shape(spec, count * width + 1, BLOCK)
        inputs = attention_inputs(
            [1] * count, [context] * count, [list(row) for row in tables], BLOCK, device="cuda"
        )
        step = attention.begin_step(inputs)

        def make(count: int = count, shape: Any = shape) -> Arguments:
            out = layer.rand(count, layer.heads, layer.depth)
            value = layer.rand(count, layer.kv_heads, layer.depth)
            return *layer.qk_norm_rope(count), value, out, layer.rand(*shape)

        def apart(*a: Any, step: Any = step) -> torch.Tensor:
            rotated = rotate(*a[:8])
            query, key = rotated[:, : layer.heads], rotated[:, layer.heads :]
            attention.forward(query, key, *a[8:], spec, step)
            return a[9]  # type: ignore[no-any-return]  # the output

        def together(*a: Any, step: Any = step) -> torch.Tensor:
            rotation = Rotation(a[5], a[6], a[7], a[1], a[2], a[4])
            query, key = a[0][:, : layer.heads], a[0][:, layer.heads :]
            attention.forward_rotating(query, key, a[8], rotation, a[9], a[10], spec, step)
            return a[9]  # type: ignore[no-any-return]  # the output

        sets = [make() for _ in range(16)]
        wanted = apart(*sets[0]).double()
        yield {
            "shape": name,
            "what": "attention, rotating",
            "tokens": count,
            "error": deviation(together(*sets[0]), wanted),
            "ours µs": clock.microseconds(together, sets),
            "inductor µs": clock.microseconds(apart, sets),
            "floor µs": 2
            * count
            * context
            * layer.kv_heads
            * layer.depth
            * layer.dtype.itemsize
            / clock.bandwidth
            * 1e6,
        }
