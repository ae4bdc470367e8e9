"""A model that calls an operator nobody vouches for, through the whole engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import EngineError
from engine.events import GraphCaptured, Notice
from engine.ops import OperatorWatch, is_recordable
from engine.testing.distributions import PluginMaker

PROMPTS = [[5, 6, 7, 8, 9], [15, 16], [25, 26, 27]]

MODEL = """
import torch
from engine.hookspecs import hookimpl
from engine_model_llama.model import Llama
from engine_model_llama.plugin import LlamaFamily

ENGINE_API_VERSION = 1

@torch.library.custom_op("{name}", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * (2.0 if float(x.abs().sum()) > 0 else 3.0)

scaled.register_fake(torch.empty_like)

class Strange(LlamaFamily):
    NAME = "strange"
    PRIORITY = 99

    def build(self, config, *, dtype, device):
        model = super().build(config, dtype=dtype, device=device)
        plain = model.forward
        model.forward = lambda input_ids, positions: scaled(plain(input_ids, positions))
        return model

@hookimpl
def engine_register_model():
    return Strange
"""


@pytest.fixture
def operator(make_plugin: PluginMaker, request: pytest.FixtureRequest) -> str:
    """Install a model that calls an operator of its own; returns the operator's name."""
    name = f"graphs_engine_test::scaled_{abs(hash(request.node.name))}"
    make_plugin("strange", kind="models", source=MODEL.format(name=name))
    return name


def settings(graphs: str, **more: Any) -> dict[str, Any]:
    return {
        "cudagraph_mode": graphs,
        "graph_device": "simulated",
        "cudagraph_capture_sizes": (1, 4, 16),
        "model_impl": "strange",
        **more,
    }


def test_pieces_break_at_it(run: Any, operator: str) -> None:
    plain = run(PROMPTS, 6, cudagraph_mode="none", model_impl="strange")
    ran = run(PROMPTS, 6, **settings("piecewise"))
    assert ran.tokens == plain.tokens
    assert ran.steps == {"piecewise|piecewise|16|": 1, "piecewise|piecewise|4|": 5}


def test_whole_graphs_of_it_are_refused_in_one_line(run: Any, operator: str) -> None:
    plain = run(PROMPTS, 6, cudagraph_mode="none", model_impl="strange")
    ran = run(PROMPTS, 6, **settings("full"))
    assert ran.tokens == plain.tokens
    assert ran.of(GraphCaptured) == []
    (notice,) = [n.message for n in ran.of(Notice) if operator in n.message]
    assert "records nothing" in notice
    assert ran.steps == {
        "full|eager|10|the model can't be recorded": 1,
        "full|eager|3|the model can't be recorded": 5,
    }


def test_asking_to_abort_makes_it_an_error(run: Any, operator: str) -> None:
    with pytest.raises(EngineError, match=rf"{operator}.*declare_recordable"):
        run(PROMPTS, 6, **settings("full", on_capture_failure="abort"))


def test_compiled_code_that_hides_it_is_not_recorded(run: Any, operator: str) -> None:
    plain = run(PROMPTS, 6, cudagraph_mode="none", model_impl="strange")
    ran = run(PROMPTS, 6, **settings("piecewise", mode="vllm_compile", backend="eager"))
    assert ran.tokens == plain.tokens
    assert ran.of(GraphCaptured) == []
    assert any(operator in notice.message for notice in ran.of(Notice))


def test_half_of_a_composition_may_be_refused(run: Any, operator: str) -> None:
    ran = run(PROMPTS, 6, **settings("full_and_piecewise"))
    assert ran.steps == {
        "full_and_piecewise|piecewise|16|": 1,
        "full_and_piecewise|piecewise|4|": 5,
    }


def test_operators_of_pytorch_and_break_ops_are_known() -> None:
    import engine.ops

    assert "engine::attention" in engine.ops.known_break_ops()
    known = [torch.ops.aten.mm.default, torch.ops.aten.index.Tensor]
    assert all(is_recordable(op) for op in [*known, torch.ops.engine.attention.default])
    waiting = [
        torch.ops.aten.nonzero.default,
        torch.ops.aten.item.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten._local_scalar_dense.default,
    ]
    assert not any(is_recordable(op) for op in waiting)


def test_the_watch_sees_what_is_not_known_and_nothing_inside_a_break_op() -> None:
    seen = []

    def note(func: Any, args: Any, kwargs: Any) -> Any:
        seen.append(func.name())
        return func(*args, **kwargs)

    x = torch.ones(3)
    with torch.inference_mode(), OperatorWatch(note):
        (x + x).softmax(-1)
        x.nonzero()
    assert seen == ["aten::nonzero"]
