"""The pass finds what it should, and its kernels compute what the references say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F
from torch.testing import assert_close

from engine_pass_small_batch_linear.fusion import SmallBatchLinear
from engine_pass_small_batch_linear.operators import gated_linear, linear

SHAPES = [
    # rows, outputs, inputs
    (1, 50, 70),
    (1, 30, 1030),
    (2, 70, 512),
    (7, 64, 300),
    (32, 65, 260),
]
ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"


class Block(torch.nn.Module):
    """Projections in every surrounding that the pass looks at."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = torch.nn.Parameter(torch.randn(32, 16, dtype=dtype), requires_grad=False)
        self.outer = torch.nn.Parameter(torch.randn(16, 16, dtype=dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, self.inner).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, self.outer)
        shared = F.linear(x, self.outer)
        return (shared + x) * shared


def traced(dtype: torch.dtype, device: str) -> fx.GraphModule:
    """Return a block's graph with fake values of a given dtype and device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    block = Block(dtype)
    graph = fx.symbolic_trace(block)
    with FakeTensorMode():
        values: dict[str, Any] = {
            "x": torch.empty(5, 16, dtype=dtype, device=device),
            "inner": torch.empty(32, 16, dtype=dtype, device=device),
            "outer": torch.empty(16, 16, dtype=dtype, device=device),
        }

        class Shapes(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                value = values.get(str(n.target)) if n.op in ("placeholder", "get_attr") else None
                value = super().run_node(n) if value is None else value
                n.meta["example_value"] = value
                return value

        Shapes(graph).run(values["x"])
    return graph


def called(graph: fx.GraphModule) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if "engine_small_batch" in str(n.target)]


def test_it_takes_the_gate_and_the_residual_along() -> None:
    graph = traced(torch.bfloat16, "cuda")
    assert SmallBatchLinear().run(graph) == 3
    graph.graph.lint()
    assert called(graph) == [
        "engine_small_batch.gated_linear.default",
        "engine_small_batch.linear.default",
        "engine_small_batch.linear.default",
    ]
    residuals = [n.args[3] for n in graph.graph.nodes if n.target is linear.overload]
    # What is used twice keeps its own place.
    assert [residual is None for residual in residuals] == [False, True]
    assert not [n for n in graph.graph.nodes if n.target in (F.silu, torch._C._nn.linear)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_graph_means_what_it_meant(dtype: torch.dtype) -> None:
    plain, fused = traced(dtype, "cuda"), traced(dtype, "cuda")
    fused.load_state_dict(plain.state_dict())
    SmallBatchLinear().run(fused)
    fused.recompile()
    x = torch.randn(5, 16, dtype=dtype)
    assert_close(fused(x), plain(x))


@pytest.mark.parametrize(
    ("dtype", "device"), [(torch.bfloat16, "cpu"), (torch.float32, "cuda"), (torch.float32, "cpu")]
)
def test_it_leaves_other_devices_and_dtypes_alone(dtype: torch.dtype, device: str) -> None:
    graph = traced(dtype, device)
    before = str(graph.graph)
    assert SmallBatchLinear().run(graph) == 0
    assert str(graph.graph) == before


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


@pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="run by the interpreter's test")
@pytest.mark.parametrize("parts", [None, 1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_compute_what_the_reference_says(
    shape: tuple[int, int, int], parts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_pass_small_batch_linear import launches

    monkeypatch.setattr(launches, "_parts", lambda *_: parts)
    if not ON_GPU:
        counters = torch.zeros(64, dtype=torch.int32)
        monkeypatch.setattr(launches, "_counters", lambda _: counters)
        monkeypatch.setattr(launches, "_units", lambda _: 1)
        monkeypatch.setattr(launches, "_shared_memory", lambda _: 1 << 17)
    rows, outputs, inputs = shape
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    # Rows of a wider tensor: strides aren't sizes.
    x = random(rows, inputs + 8, dtype=dtype)[:, :inputs]
    weight = random(2 * outputs, inputs, dtype=dtype) * inputs**-0.5
    bias = random(2 * outputs, dtype=dtype)
    residual = random(rows, outputs, dtype=dtype)
    for bias_or_none in (bias, None):
        wanted = gated_linear.reference(*_wide(x, weight, bias_or_none))
        _close(launches.gated_linear(x, weight, bias_or_none), wanted)
        half = None if bias_or_none is None else bias[:outputs]
        for residual_or_none in (residual, None):
            arguments = (x, weight[:outputs], half, residual_or_none)
            _close(launches.linear(*arguments), linear.reference(*_wide(*arguments)))


def _wide(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if tensor is None else tensor.double() for tensor in tensors]


def _close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    scale = float(wanted.abs().max())
    bound = 2e-2 if ON_GPU else 1e-5
    assert float((found.double() - wanted).abs().max()) <= bound * scale


@pytest.mark.gpu
def test_a_recorded_graph_gives_the_same_again() -> None:
    x, weight = random(8, 8192, dtype=torch.bfloat16), random(2048, 8192, dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        linear(x, weight, None, None)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin()
        out = linear(x, weight, None, None)
        graph.capture_end()
    outcomes = []
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        first = out.clone()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(first, out)
        _close(out, linear.reference(*_wide(x, weight, None, None)))
        outcomes.append(first)
    assert not torch.equal(outcomes[0], outcomes[1])


@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="the kernels run as they are")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernels_are_right_in_the_interpreter() -> None:
    """Triton decides when it is imported whether it interprets, so a process of its own does."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    command += ["-k", "reference_says"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "20 passed" in result.stdout
