"""The pass fires where nothing is done, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from engine.testing import PassConformance
from engine.testing.compiling import ToyDecoder, run_step
from engine.tracing import Traced, trace_model
from engine_pass_noop_elimination.noops import NoopElimination

Change = Callable[[torch.Tensor], torch.Tensor]


class TestContract(PassConformance):
    strategy = "noop_elimination"

    @staticmethod
    def example(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], 16).contiguous().float()


class Changed(ToyDecoder):
    """A decoder whose result goes through one more function."""

    def __init__(self, change: Change) -> None:
        super().__init__(1)
        self.change = change

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.change(super().forward(input_ids, positions)) + 0.5


def traced(change: Change) -> tuple[ToyDecoder, Traced]:
    model = Changed(change)
    return model, trace_model(model, 64, torch.device("cpu"))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.to(torch.float32),
        lambda x: x.float(),
        lambda x: x.contiguous(),
        lambda x: x.view(-1, 16),
        lambda x: x.reshape(x.shape),
        lambda x: x.expand(-1, 16),
        lambda x: torch.reshape(x, (-1, 16)),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: x.view(x.shape[0], 16).contiguous().float(),
    ],
    ids=range(9),
)
def test_a_no_op_goes_and_the_result_stays_the_same(change: Change) -> None:
    model, whole = traced(change)
    _, plain = traced(lambda x: x)
    fired = NoopElimination().run(whole.graph)
    baseline = NoopElimination().run(plain.graph)
    assert fired > baseline
    assert targets(whole.graph) == targets(plain.graph)
    whole.graph.recompile()
    for num_tokens in (1, 2, 7):
        expected = run_step(model, model, num_tokens)
        assert torch.equal(run_step(whole.bind(whole.graph.forward), model, num_tokens), expected)


def targets(graph: fx.GraphModule) -> list[str]:
    """Return what the graph calls, without the sizes that nobody uses any more."""
    graph.graph.eliminate_dead_code(lambda node: node.target == "attention" or node.is_impure())
    calls = (node for node in graph.graph.nodes if node.op.startswith("call"))
    return [str(node.target) for node in calls if node.target != "size"]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.to(torch.float64).to(torch.float32),
        lambda x: x.view(-1, 4, 4).view(-1, 16),
        lambda x: x.t().contiguous().t(),
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.clone(),
        lambda x: x[:, :16] * 1,
        lambda x: x.unsqueeze(0).expand(2, -1, -1)[0],
    ],
    ids=range(7),
)
def test_what_changes_something_stays(change: Change) -> None:
    _, whole = traced(change)
    _, plain = traced(lambda x: x)
    assert NoopElimination().run(whole.graph) == NoopElimination().run(plain.graph)


def test_it_fires_on_a_model_of_transformers_and_changes_nothing() -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig

    from engine.registry import Registry

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    plugin = Registry().load("models", "transformers")
    model = plugin().build(config, dtype=torch.float32, device=torch.device("cpu")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.requires_grad_(False)
    whole = trace_model(model, 64, torch.device("cpu"))
    before = run_step(whole.bind(whole.graph.forward), model, 5)
    assert NoopElimination().run(whole.graph) > 0
    whole.graph.graph.lint()
    whole.graph.recompile()
    assert torch.equal(run_step(whole.bind(whole.graph.forward), model, 5), before)
    assert torch.equal(run_step(model, model, 5), before)
