"""Fused operators, and rotation inside attention, under recorded graphs of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.events import GraphCaptured, ModelCompiled

PASSES = ["+rope_kv_write", "+add_rms_norm", "+silu_mul"]


@pytest.mark.parametrize("graphs", ["piecewise", "full", "full_and_piecewise"])
@pytest.mark.parametrize("passes", [PASSES, ["+qk_norm_rope"]], ids=["rotating", "rotated before"])
def test_a_model_changed_by_passes_is_recorded_and_gives_the_same_tokens(
    run: Callable[..., Any], graphs: str, passes: list[str]
) -> None:
    prompts = [[random.randrange(3, 200) for _ in range(length)] for length in (5, 1, 9)]
    plain = run(prompts, 8, mode="none", cudagraph_mode="none")
    fused = run(
        prompts,
        8,
        mode="vllm_compile",
        backend="eager",
        passes=tuple(passes),
        cudagraph_mode=graphs,
        cudagraph_capture_sizes=[2, 3, 16],
        graph_device="simulated",
        # Each replay is compared with the step without graphs, from break op to break op.
        debug_graphs=True,
    )
    assert fused.tokens == plain.tokens
    (compiled,) = fused.of(ModelCompiled)
    assert all(compiled.report.passes[name.removeprefix("+")] for name in passes)
    assert fused.captured
    assert not [event.dropped for event in fused.of(GraphCaptured) if event.dropped]
    assert any(step.startswith(graphs.partition("_")[0]) for step in fused.steps)
