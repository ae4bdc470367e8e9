"""The contract of a compile mode, and what only this one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_regional_compile.strategy import RegionalCompile, repeated_blocks
from torch import nn

from engine import LLM, SamplingParams
from engine.errors import ModelError
from engine.testing import CompileStrategyConformance
from engine.testing.backends import CountingBackend
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine.testing.tiny import write_tiny_model


class TestContract(CompileStrategyConformance):
    strategy = "regional_compile"


@pytest.mark.parametrize("layers", [1, 2, 9])
def test_one_block_is_compiled_however_many_there_are(layers: int) -> None:
    model, backend = ToyDecoder(layers), CountingBackend()
    strategy = RegionalCompile()
    made = strategy.compile(compile_job(model, backend))
    assert len(backend.graphs) == 1
    assert (made.report.pieces, made.report.unique_pieces) == (layers, 1)
    got = run_step(made.call, model, 7)
    strategy.close()
    assert torch.equal(run_step(model, model, 7), got)
    assert "forward" not in vars(model.layers[0])


def test_a_block_of_another_shape_is_compiled_besides() -> None:
    model, backend = ToyDecoder(3), CountingBackend()
    layer = model.layers[1]
    layer.up, layer.down = nn.Linear(16, 32, bias=False), nn.Linear(16, 16, bias=False)
    expected = run_step(model, model, 5)
    strategy = RegionalCompile()
    made = strategy.compile(compile_job(model.requires_grad_(False), backend))
    assert made.report.unique_pieces == 2
    assert torch.equal(run_step(made.call, model, 5), expected)
    strategy.close()


def test_a_model_without_a_stack_is_refused() -> None:
    with pytest.raises(ModelError, match="Linear repeats no block"):
        repeated_blocks(nn.Linear(2, 2))


def test_tokens_are_those_of_the_plain_model(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path))
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    outputs = []
    for mode in ("none", "regional_compile"):
        chosen = {"mode": mode, "backend": "eager", "cudagraph_mode": "none"}
        with LLM(model, compilation_config=chosen) as llm:
            outputs.append([o.outputs[0].token_ids for o in llm.generate(["a", "hello"], greedy)])
            assert llm.core.stats().late_compiles == 0
    assert outputs[0] == outputs[1]
