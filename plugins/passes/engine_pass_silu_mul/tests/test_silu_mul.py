"""SiLU·mul fires on one projection in two halves, on nothing else, and changes no result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from transformers import PretrainedConfig

from engine.ops import silu_mul
from engine.testing import PassConformance
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


class TestContract(PassConformance):
    strategy = "silu_mul"

    @staticmethod
    def example(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return up * F.silu(gate)


@pytest.mark.parametrize("config", [tiny_llama, tiny_qwen3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_fires_once_in_each_layer(
    config: Callable[[], PretrainedConfig], dtype: torch.dtype
) -> None:
    model = random_model("llama", config(), dtype=dtype)
    traced, fired = rewritten(model, load("silu_mul"))
    assert fired == {"silu_mul": LAYERS}
    compare(traced.bind(traced.graph.forward), model)
    calls = traced.graph.graph.find_nodes(op="call_function", target=silu_mul.overload)
    assert len(calls) == LAYERS
    assert not traced.graph.graph.find_nodes(op="call_function", target=F.silu)


def test_gate_and_up_of_two_projections_stay_until_those_are_one() -> None:
    model = random_model("transformers", tiny_llama())
    assert rewritten(model, load("silu_mul"))[1] == {"silu_mul": 0}
    model = random_model("transformers", tiny_llama())
    traced, fired = rewritten(model, load("silu_mul", "horizontal_fusion"))
    assert fired["silu_mul"] == LAYERS
    compare(traced.bind(traced.graph.forward), model)


Change = Callable[[torch.Tensor], torch.Tensor]


def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.chunk(2, dim=-1)
    return gate, up


def gate_is_used_elsewhere(x: torch.Tensor) -> torch.Tensor:
    gate, up = parts(x)
    return F.silu(gate) * up + gate


def activation_is_used_elsewhere(x: torch.Tensor) -> torch.Tensor:
    gate, up = parts(x)
    active = F.silu(gate)
    return active * up + active


def halves_of_two(x: torch.Tensor) -> torch.Tensor:
    return F.silu(parts(x)[0]) * parts(x * 2)[1]


def halves_are_swapped(x: torch.Tensor) -> torch.Tensor:
    gate, up = parts(x)
    return F.silu(up) * gate


def unequal_parts(x: torch.Tensor) -> torch.Tensor:
    first, second, _ = x.split((7, 7, 2), dim=-1)
    product: torch.Tensor = F.silu(first) * second
    return product


def another_dimension(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.unsqueeze(0).expand(2, -1, -1).contiguous().chunk(2, dim=0)
    product: torch.Tensor = F.silu(gate) * up
    return product.squeeze(0)


def another_dtype(x: torch.Tensor) -> torch.Tensor:
    gate, up = parts(x)
    return F.silu(gate.double()).float() * up


def written_between(x: torch.Tensor) -> torch.Tensor:
    gate, up = parts(x)
    active = F.silu(gate)
    up.add_(1)
    return active * up


@pytest.mark.parametrize(
    "change",
    [
        gate_is_used_elsewhere,
        activation_is_used_elsewhere,
        halves_of_two,
        halves_are_swapped,
        unequal_parts,
        another_dimension,
        another_dtype,
        written_between,
    ],
)
def test_what_is_something_else_stays(change: Change) -> None:
    model = Changed(change)
    traced, fired = rewritten(model, load("silu_mul"))
    assert fired == {"silu_mul": 1}  # the one of the decoder's own layer
    compare(traced.bind(traced.graph.forward), model)
