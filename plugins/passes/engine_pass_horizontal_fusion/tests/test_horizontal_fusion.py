"""Linear layers of the same input become one, their weights are joined once, in no more memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import PretrainedConfig, Qwen2Config

from engine.joined_weights import join_rows
from engine.testing import PassConformance
from engine.testing.compiling import run_step
from engine.testing.passes import (
    LAYERS,
    Changed,
    compare,
    load,
    random_model,
    rewritten,
    tiny_llama,
    tiny_qwen3,
)

PARAMETERS = [nn.Parameter(torch.randn(size, 16), requires_grad=False) for size in (3, 5, 8, 8)]
BIASES = [nn.Parameter(torch.randn(size), requires_grad=False) for size in (3, 5, 8, 8)]


class TestContract(PassConformance):
    strategy = "horizontal_fusion"

    @staticmethod
    def example(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.linear(x, weight) for weight in PARAMETERS], dim=-1)


def tiny_qwen2() -> PretrainedConfig:
    """Queries, keys and values have biases."""
    return Qwen2Config(**{k: v for k, v in tiny_llama().to_dict().items() if k in QWEN2})


QWEN2 = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
}


@pytest.mark.parametrize("config", [tiny_llama, tiny_qwen3, tiny_qwen2])
def test_it_fires_twice_in_each_layer_that_keeps_projections_apart(
    config: Callable[[], PretrainedConfig],
) -> None:
    model = random_model("transformers", config())
    sizes = (1, 2, 7)
    expected = [run_step(model, model, size, seed=size) for size in sizes]
    traced, fired = rewritten(model, load("horizontal_fusion"))
    assert fired == {"horizontal_fusion": 2 * LAYERS}
    call = traced.bind(traced.graph.forward)
    for size, hidden in zip(sizes, expected, strict=True):
        # The model's own Python, whose weights are views now, gives the very same.
        assert torch.equal(run_step(model, model, size, seed=size), hidden)
    compare(call, model, sizes)
    # Output and down projection are left, and one product for each group.
    assert len(linears(traced.graph)) == 4 * LAYERS
    assert not traced.graph.graph.find_nodes(op="call_function", target=join_rows)


def linears(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return graph.graph.find_nodes(op="call_function", target=F.linear)


def test_a_model_that_joins_them_itself_is_left_as_it_is() -> None:
    model = random_model("llama", tiny_llama())
    assert rewritten(model, load("horizontal_fusion"))[1] == {"horizontal_fusion": 0}


def test_no_weight_is_in_memory_twice() -> None:
    model = random_model("transformers", tiny_llama())
    before = sum(p.untyped_storage().nbytes() for p in model.parameters())
    traced, _ = rewritten(model, load("horizontal_fusion"))
    tensors = [*model.parameters(), *traced.example_inputs]
    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in tensors
        if isinstance(one, torch.Tensor) and one.is_floating_point() and one.ndim > 0
    }
    buffers = sum(b.untyped_storage().nbytes() for b in model.buffers())
    assert sum(storages.values()) <= before + buffers


def test_a_second_compilation_finds_the_weights_joined_and_joins_them_again() -> None:
    model = random_model("transformers", tiny_llama())
    for _ in range(2):
        traced, fired = rewritten(model, load("horizontal_fusion"))
        assert fired == {"horizontal_fusion": 2 * LAYERS}
        compare(traced.bind(traced.graph.forward), model)


Change = Callable[[torch.Tensor], torch.Tensor]
W = PARAMETERS

STAYS: dict[str, Change] = {
    "one layer": lambda x: F.linear(x, W[0]),
    "two inputs": lambda x: F.linear(x, W[2]) + F.linear(x + 1, W[3]),
    "with and without bias": lambda x: F.linear(x, W[2]) + F.linear(x, W[3], BIASES[3]),
    "one weight twice": lambda x: F.linear(x, W[2]) + F.linear(x, W[2]),
    "a weight that is computed": lambda x: F.linear(x, W[2] * 2) + F.linear(x, W[3]),
    "an input that is written between": lambda x: F.linear(x, W[2]) + F.linear(x.add_(1), W[3]),
    "a result that is written": lambda x: F.linear(x, W[2]).add_(1) + F.linear(x, W[3]),
}


@pytest.mark.parametrize("kind", STAYS)
def test_what_is_something_else_stays(kind: str) -> None:
    model = Changed(STAYS[kind])
    traced, fired = rewritten(model, load("horizontal_fusion"))
    assert fired == {"horizontal_fusion": 0}
    compare(traced.bind(traced.graph.forward), model)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: F.linear(x, W[2], BIASES[2]) * F.linear(x, W[3], BIASES[3]),
        lambda x: F.linear(x, W[2]).view(-1, 2, 4) + F.linear(x, W[3]).view(-1, 2, 4),
        # A view that only packed rows allow.
        lambda x: (F.linear(x, W[2]).view(-1) + F.linear(x, W[3]).view(-1)).view(-1, 8),
        lambda x: F.linear(x, W[0]).sum(-1) + F.linear(x, W[1]).sum(-1),
    ],
    ids=range(4),
)
def test_what_uses_the_results_keeps_working(change: Change) -> None:
    model = Changed(change)
    traced, fired = rewritten(model, load("horizontal_fusion", "noop_elimination"))
    assert fired["horizontal_fusion"] == 1
    compare(traced.bind(traced.graph.forward), model)
