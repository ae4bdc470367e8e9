"""Rotations, with the norms before them, become one operator wherever models write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from transformers import GPTNeoXConfig, PretrainedConfig

from engine.ops import apply_rotary, qk_norm_rope, rms_norm
from engine.patterns import example
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

COS, SIN = torch.rand(2, 4)
WEIGHT, OTHER = torch.rand(2, 4) + 0.5
Change = Callable[[torch.Tensor], torch.Tensor]


def tables(x: torch.Tensor, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles that differ by token, as [T, 1, size]."""
    angles = x[:, None, :size]
    return angles.cos(), angles.sin()


def heads_of(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, 4, 4)


class TestContract(PassConformance):
    strategy = "qk_norm_rope"

    @staticmethod
    def example(x: torch.Tensor) -> torch.Tensor:
        return apply_rotary(x.view(-1, 4, 4), *tables(x)).reshape(-1, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("implementation", "config", "times"),
    [
        ("llama", tiny_llama, LAYERS),
        ("llama", tiny_qwen3, LAYERS),
        # Queries and keys are rotated apart there.
        ("transformers", tiny_llama, 2 * LAYERS),
        ("transformers", tiny_qwen3, 2 * LAYERS),
    ],
)
def test_it_fires_in_each_layer(
    implementation: str, config: Callable[[], PretrainedConfig], times: int, dtype: torch.dtype
) -> None:
    model = random_model(implementation, config(), dtype=dtype)
    traced, fired = rewritten(model, load("qk_norm_rope"))
    assert fired == {"qk_norm_rope": times}
    compare(traced.bind(traced.graph.forward), model)
    weights = [node.args[1:3] for node in calls(traced.graph)]
    normed = config().model_type == "qwen3"
    assert all((query is not None) == normed for query, _ in weights)
    # Side by side each has its weight; apart, each is the first part of nothing else.
    assert all((key is not None) == (normed and times == LAYERS) for _, key in weights)


def calls(graph: fx.GraphModule) -> list[fx.Node]:
    return graph.graph.find_nodes(op="call_function", target=qk_norm_rope.overload)


def test_it_fires_where_a_part_of_each_head_is_rotated() -> None:
    config = GPTNeoXConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    model = random_model("transformers", config)
    traced, fired = rewritten(model, load("qk_norm_rope"))
    assert fired == {"qk_norm_rope": 2 * LAYERS}
    compare(traced.bind(traced.graph.forward), model)
    for call in calls(traced.graph):
        heads, table = example(call.args[0]), example(call.args[5])
        assert heads is not None
        assert table is not None
        assert table.shape[-1] < heads.shape[-1]


def on_heads(write: Callable[..., torch.Tensor]) -> Change:
    """Return a function of hidden that gives heads, cosines and sines to another."""
    return lambda x: write(heads_of(x), *tables(x)).float()


def written(h: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    straight = h * cos
    h.add_(1)
    return straight + rotate_half(h) * sin


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((-x[..., 2:], x[..., :2]), dim=-1)


def joined(x: torch.Tensor, keys: torch.Tensor = OTHER, eps: float = 1e-5) -> torch.Tensor:
    heads = heads_of(x)
    query, key = heads[:, :3], heads[:, 3:]
    both = torch.cat((rms_norm(query, WEIGHT, 1e-5), rms_norm(key, keys, eps)), dim=1)
    return apply_rotary(both, *tables(x))


FIRES: dict[str, tuple[Change, tuple[bool, bool]]] = {
    "halves rolled": (lambda x: apply_rotary(heads_of(x), *tables(x)), (False, False)),
    "halves negated": (on_heads(lambda h, c, s: h * c + rotate_half(h) * s), (False, False)),
    "a part of each head": (
        lambda x: apply_rotary(heads_of(x), *tables(x, 2)),
        (False, False),
    ),
    "one norm": (
        lambda x: apply_rotary(rms_norm(heads_of(x), WEIGHT, 1e-5), *tables(x)),
        (True, False),
    ),
    "two norms": (joined, (True, True)),
    # What can't be taken in is rotated as it is.
    "two norms that differ": (lambda x: joined(x, eps=1e-2), (False, False)),
    "a normalised value that others use": (
        lambda x: apply_rotary(n := rms_norm(heads_of(x), WEIGHT, 1e-5), *tables(x)) + n,
        (False, False),
    ),
}


@pytest.mark.parametrize("kind", FIRES)
def test_it_is_found_however_it_is_written(kind: str) -> None:
    change, normed = FIRES[kind]
    model = Changed(change)
    traced, fired = rewritten(model, load("qk_norm_rope"))
    assert fired == {"qk_norm_rope": 1}
    compare(traced.bind(traced.graph.forward), model)
    (call,) = calls(traced.graph)
    assert tuple(weight is not None for weight in call.args[1:3]) == normed


STAYS: dict[str, Change] = {
    "rolled by a quarter": on_heads(lambda h, c, s: h * c + h.roll(1, dims=-1) * s),
    "rolled along the heads": on_heads(lambda h, c, s: h * c + h.roll(2, dims=1) * s),
    "the other half negated": on_heads(
        lambda h, c, s: h * c + torch.cat((h[..., 2:], -h[..., :2]), -1) * s
    ),
    "halves of something else": on_heads(lambda h, c, s: h * c + rotate_half(h.exp()) * s),
    "a difference": on_heads(lambda h, c, s: h * c - rotate_half(h) * s),
    "a sum that is scaled": on_heads(lambda h, c, s: torch.add(h * c, rotate_half(h) * s, alpha=2)),
    "one table for each head": on_heads(lambda h, c, s: h * h.cos() + rotate_half(h) * h.sin()),
    "one table for all tokens": on_heads(lambda h, c, s: h * COS + rotate_half(h) * SIN),
    "another dtype": on_heads(lambda h, c, s: h * c.double() + rotate_half(h) * s.double()),
    "a product that others use": on_heads(lambda h, c, s: (p := h * c) + rotate_half(h) * s + p),
    "heads that are written on the way": on_heads(written),
}


@pytest.mark.parametrize("kind", STAYS)
def test_what_is_something_else_stays(kind: str) -> None:
    model = Changed(STAYS[kind])
    traced, fired = rewritten(model, load("qk_norm_rope"))
    assert fired == {"qk_norm_rope": 0}
    compare(traced.bind(traced.graph.forward), model)
