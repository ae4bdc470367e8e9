"""Packed projections fire on every layer of a CPU model, and compute what the weight says."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from transformers import PretrainedConfig

from engine.ops import packed_linear
from engine.ops.packed_weights import packed_of
from engine.testing import PassConformance
from engine.testing.passes import (
    LAYERS,
    compare,
    load,
    random_model,
    rewritten,
    tiny_llama,
    tiny_qwen3,
)

PROJECTIONS = 4
"""Of one layer: query, key and value; output; gate and up; down."""


class TestContract(PassConformance):
    strategy = "packed_linear"

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight)

    example = Model()


@pytest.mark.parametrize("config", [tiny_llama, tiny_qwen3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_fires_on_every_projection(
    config: Callable[[], PretrainedConfig], dtype: torch.dtype
) -> None:
    model = random_model("llama", config(), dtype=dtype)
    traced, fired = rewritten(model, load("packed_linear"))
    assert fired == {"packed_linear": PROJECTIONS * LAYERS}
    compare(traced.bind(traced.graph.forward), model)
    assert not traced.graph.graph.find_nodes(op="call_function", target=F.linear)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 300])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_is_that_of_the_weight(dtype: torch.dtype, rows: int, with_bias: bool) -> None:
    weight = torch.nn.Parameter(torch.randn(70, 48, dtype=dtype), requires_grad=False)
    bias = torch.randn(70, dtype=dtype) if with_bias else None
    # Rows of a wider tensor: strides aren't sizes.
    x = torch.randn(rows, 61, dtype=dtype)[:, :48]
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    bound = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(
        packed_linear(x, weight, bias).double(), wanted, rtol=bound, atol=bound * 8
    )


def test_a_weight_that_changes_is_packed_anew() -> None:
    weight = torch.nn.Parameter(torch.randn(9, 8), requires_grad=False)
    x = torch.randn(3, 8)
    packed_linear(x, weight, None)
    weight.add_(1)
    torch.testing.assert_close(packed_linear(x, weight, None), F.linear(x, weight))
    weight.data = torch.randn(9, 8)
    torch.testing.assert_close(packed_linear(x, weight, None), F.linear(x, weight))


def test_a_packed_weight_is_made_once_and_goes_with_its_parameter() -> None:
    weight = torch.nn.Parameter(torch.randn(9, 8), requires_grad=False)
    packed = packed_of(weight)
    if packed is None:
        pytest.skip("this build of PyTorch packs no weights")
    assert packed_of(weight) is packed
    gone = weakref.ref(packed)
    del packed, weight
    gc.collect()
    assert gone() is None


def test_what_is_no_parameter_is_not_packed() -> None:
    weight = torch.randn(9, 8)
    assert packed_of(weight) is None
    x = torch.randn(3, 8)
    assert torch.equal(packed_linear(x, weight, None), F.linear(x, weight))


def test_a_model_of_transformers_has_it_too() -> None:
    model = random_model("transformers", tiny_llama())
    traced, fired = rewritten(model, load("packed_linear"))
    assert fired["packed_linear"] >= PROJECTIONS * LAYERS
    compare(traced.bind(traced.graph.forward), model)
