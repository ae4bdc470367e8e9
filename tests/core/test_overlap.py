"""Kernels that start before the one before them ended read what it wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.ops import add_rms_norm, qk_norm_rope
from engine.ops.overlapping import overlap

TOKENS, HEADS, DEPTH = 37, 16, 64
ROUNDS = 60


def test_only_gpus_that_can_overlap_do() -> None:
    assert overlap(torch.device("cpu")) == {"early": False}


@pytest.mark.gpu
def test_a_recorded_chain_equals_its_kernels_one_by_one() -> None:
    weight = torch.randn(HEADS * DEPTH, device="cuda", dtype=torch.bfloat16)
    cos, sin = torch.randn(2, TOKENS, 1, DEPTH, device="cuda", dtype=torch.bfloat16).unbind(0)
    start = torch.empty(TOKENS, HEADS * DEPTH, device="cuda", dtype=torch.bfloat16)

    def chain(after_each: Callable[[], None] = lambda: None) -> torch.Tensor:
        x, residual = start, start
        for _ in range(ROUNDS):
            x, residual = add_rms_norm(x, residual, weight, 1e-6)
            after_each()
            heads = x.view(TOKENS, HEADS, DEPTH)
            x = qk_norm_rope(heads, None, None, HEADS, 1e-6, cos, sin, True).view(TOKENS, -1)
            after_each()
        return x + residual

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = chain()
        for _ in range(20):
            start.normal_()
            graph.replay()
            replayed = found.clone()
            assert torch.equal(replayed, chain())
            assert torch.equal(replayed, chain(torch.cuda.synchronize))
