"""The contract of a pass, twice, and what only these two do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from engine_fused_gelu.operators import LIMIT, gelu_mul, note_largest
from engine_fused_gelu.passes import FusedGelu, GeluWatch
from torch.nn import functional as F

from engine.registry import Registry
from engine.testing import PassConformance
from engine.testing.backends import CountingBackend
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine.tracing import Traced, trace_model


class TestFusing(PassConformance):
    strategy = "fused_gelu"

    @staticmethod
    def example(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x) * x.sin()


class TestWatching(PassConformance):
    strategy = "gelu_watch"

    @staticmethod
    def example(x: torch.Tensor) -> torch.Tensor:
        fused: torch.Tensor = gelu_mul(x, x.sin())
        return fused


class GeluDecoder(ToyDecoder):
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(input_ids, positions)
        return F.gelu(hidden) * hidden.cos() + 0.5


def traced(model: ToyDecoder) -> Traced:
    return trace_model(model, 16, torch.device("cpu"))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: F.gelu(x, approximate="tanh") * x,
        lambda x: F.gelu(x) * 2,
        lambda x: F.gelu(x) * x[:1],
        lambda x: (g := F.gelu(x)) * x + g,
    ],
    ids=["another gelu", "a number", "another shape", "used twice"],
)
def test_what_is_something_else_stays(change) -> None:  # type: ignore[no-untyped-def]  # a function of a tensor
    class Changed(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return change(super().forward(input_ids, positions)) + 0.5  # type: ignore[no-any-return]  # likewise

    assert FusedGelu().run(traced(Changed(1)).graph) == 0


def test_a_compile_mode_cuts_at_the_break_op_and_gives_the_same() -> None:
    model, backend = GeluDecoder(2), CountingBackend()
    passes = (FusedGelu(), GeluWatch())
    strategy = Registry().load("compile_modes", "vllm_compile")()
    made = strategy.compile(compile_job(model, backend, passes=passes))
    assert made.report.passes == {"fused_gelu": 1, "gelu_watch": 1}
    # Before, between and after two attentions, and after the watch.
    assert made.report.pieces == 4
    for tokens in (1, 5, 16):
        wanted = run_step(model, model, tokens)
        torch.testing.assert_close(run_step(made.call, model, tokens), wanted)


def test_a_large_activation_is_told(caplog: pytest.LogCaptureFixture) -> None:
    largest = torch.empty(1)
    note_largest(torch.tensor([1.0, -3.0]), largest)
    assert float(largest) == 3.0
    assert not caplog.records
    note_largest(torch.tensor([2 * LIMIT]), largest)
    assert "an activation of 20000" in caplog.text


KERNEL = """
import torch
from engine_fused_gelu import kernels
from engine_fused_gelu.operators import gelu_mul
for shape in ((1, 7), (5, 1024), (3, 1500)):
    for dtype in (torch.float32, torch.float16):
        wide = torch.randn(shape[0], 2 * shape[1], dtype=dtype)
        gate, up = wide.chunk(2, -1)
        torch.testing.assert_close(kernels.gelu_mul(gate, up), gelu_mul.reference(gate, up))
assert kernels.gelu_mul(torch.empty(0, 8), torch.empty(0, 8)).shape == (0, 8)
"""


def test_the_kernel_equals_its_reference_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="the kernel needs Triton, which this platform hasn't")
    # Triton decides at its first import whether it interprets, so this needs a fresh process.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, "-c", KERNEL], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
