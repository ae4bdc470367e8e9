"""Residual and norm become one operator where they are one thing, and only there."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from transformers import PretrainedConfig

from engine.ops import add_rms_norm, rms_norm
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

WEIGHT = torch.rand(16) + 0.5


class TestContract(PassConformance):
    strategy = "add_rms_norm"

    @staticmethod
    def example(x: torch.Tensor) -> torch.Tensor:
        total = x * 2 + x.sin()
        return rms_norm(total, WEIGHT, 1e-3) + total


@pytest.mark.parametrize("implementation", ["llama", "transformers"])
@pytest.mark.parametrize("config", [tiny_llama, tiny_qwen3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_fires_at_every_residual_that_is_normalised(
    implementation: str, config: Callable[[], PretrainedConfig], dtype: torch.dtype
) -> None:
    model = random_model(implementation, config(), dtype=dtype)
    traced, fired = rewritten(model, load("add_rms_norm"))
    # After attention and after the MLP; the norm after the last layer is one of these.
    assert fired == {"add_rms_norm": 2 * LAYERS}
    compare(traced.bind(traced.graph.forward), model)
    eps = {n.args[3] for n in traced.graph.graph.nodes if n.target is add_rms_norm.overload}
    assert eps == {model_eps(config())}
    # Only the norm before the first layer is left.
    assert sum(is_norm(node) for node in traced.graph.graph.nodes) == 1 + heads_normalised(config())


def model_eps(config: PretrainedConfig) -> float:
    return float(config.rms_norm_eps)


def heads_normalised(config: PretrainedConfig) -> int:
    return 2 * LAYERS if config.model_type == "qwen3" else 0


def is_norm(node: torch.fx.Node) -> bool:
    return node.target in (torch.rms_norm, F.rms_norm, torch.rsqrt, "rsqrt")


def spelled_out(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@pytest.mark.parametrize(
    "norm",
    [
        rms_norm,
        spelled_out,
        lambda x, w, eps: F.rms_norm(x, (16,), w, eps),
        lambda x, w, eps: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w,
        lambda x, w, eps: w * (torch.square(x).mean(-1, keepdim=True).add(eps).rsqrt() * x),
    ],
    ids=range(5),
)
def test_a_norm_is_found_however_it_is_written(norm: Callable[..., torch.Tensor]) -> None:
    model = Changed(lambda x: norm(x * 2 + x.cos(), WEIGHT, 1e-4))
    traced, fired = rewritten(model, load("add_rms_norm"))
    assert fired == {"add_rms_norm": 1 + in_the_decoder()}
    compare(traced.bind(traced.graph.forward), model)


def in_the_decoder() -> int:
    """How often it fires on the toy decoder itself."""
    return rewritten(Changed(torch.relu), load("add_rms_norm"))[1]["add_rms_norm"]


def added(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.cos()


STAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the normalised value is used before its weight": lambda x: (
        (n := F.rms_norm(added(x), (16,), None, 1e-5)) * WEIGHT + n
    ),
    "a sum with a number": lambda x: rms_norm(x.cos() + 1, WEIGHT, 1e-5),
    "a sum that is broadcast": lambda x: rms_norm(x.cos() + WEIGHT, WEIGHT, 1e-5),
    "a difference": lambda x: rms_norm(x.cos() - x, WEIGHT, 1e-5),
    "a scaled sum": lambda x: rms_norm(torch.add(x, x.cos(), alpha=2), WEIGHT, 1e-5),
    "a mean that is subtracted": lambda x: F.layer_norm(added(x), (16,), WEIGHT, None, 1e-5),
    "a norm over another dimension": lambda x: (
        (s := added(x).view(-1, 4, 4)) * torch.rsqrt(s.pow(2).mean(1, keepdim=True) + 1e-5)
    ),
    "a third power": lambda x: (
        (s := added(x)) * torch.rsqrt(s.pow(3).abs().mean(-1, keepdim=True) + 1e-5) * WEIGHT
    ),
    "no eps": lambda x: F.rms_norm(added(x), (16,), WEIGHT),
    "a weight that is one more": lambda x: rms_norm(added(x), 1 + WEIGHT, 1e-5),
    "another dtype": lambda x: rms_norm(added(x).double(), WEIGHT.double(), 1e-5).float(),
    "rounded between": lambda x: rms_norm(added(x).half().float(), WEIGHT, 1e-5),
}


@pytest.mark.parametrize("kind", STAYS)
def test_what_is_something_else_stays(kind: str) -> None:
    model = Changed(STAYS[kind])
    traced, fired = rewritten(model, load("add_rms_norm"))
    assert fired == {"add_rms_norm": in_the_decoder()}
    compare(traced.bind(traced.graph.forward), model)


def test_a_sum_that_is_written_afterwards_stays() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        total = added(x)
        normed = rms_norm(total, WEIGHT, 1e-5)
        total[:, :4].mul_(2)
        return normed + total

    model = Changed(change)
    traced, fired = rewritten(model, load("add_rms_norm"))
    assert fired == {"add_rms_norm": in_the_decoder()}
    compare(traced.bind(traced.graph.forward), model)


def test_the_sum_stays_available_to_everyone() -> None:
    model = Changed(lambda x: rms_norm(s := added(x), WEIGHT, 1e-5) * s + s.sin())
    traced, fired = rewritten(model, load("add_rms_norm"))
    assert fired == {"add_rms_norm": 1 + in_the_decoder()}
    compare(traced.bind(traced.graph.forward), model)
    both = traced.graph.graph.find_nodes(op="call_function", target=add_rms_norm.overload)[-1]
    assert all(user.target is operator.getitem for user in both.users)
