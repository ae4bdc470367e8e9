"""Rotation moves into attention, which may do it itself or have it done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import PretrainedConfig

from engine.attention import AttentionPlugin, AttentionSpec, Rotation
from engine.models import CausalLM
from engine.ops import attention, known_break_ops, qk_norm_rope
from engine.registry import Registry
from engine.testing import PassConformance
from engine.testing.paged import PagedRunner
from engine.testing.passes import (
    LAYERS,
    compare,
    load,
    random_model,
    rewritten,
    tiny_llama,
    tiny_qwen3,
)

MODELS = [
    (implementation, config)
    for implementation in ("llama", "transformers")
    for config in (tiny_llama, tiny_qwen3)
]


class TestContract(PassConformance):
    strategy = "rope_kv_write"


@pytest.mark.parametrize(("implementation", "config"), MODELS)
def test_it_fires_in_each_layer(
    implementation: str, config: Callable[[], PretrainedConfig]
) -> None:
    model = random_model(implementation, config())
    traced, fired = rewritten(model, load("rope_kv_write"))
    assert fired == {"rope_kv_write": LAYERS}
    compare(traced.bind(traced.graph.forward), model)
    assert len(calls(traced.graph, "rotating_attention")) == LAYERS
    assert not calls(traced.graph, "attention")
    # Nothing of the rotation is left outside.
    targets = [node.target for node in traced.graph.graph.nodes]
    assert not {"roll", torch.roll} & set(targets)


def calls(graph: torch.fx.GraphModule, name: str) -> list[torch.fx.Node]:
    packet = getattr(torch.ops.engine, name)
    return [n for n in graph.graph.nodes if n.target in (packet, packet.default)]


def test_the_operator_is_one_that_graphs_break_at() -> None:
    assert "engine::rotating_attention" in known_break_ops()


def test_what_the_other_pass_would_take_is_taken_here_first() -> None:
    model = random_model("llama", tiny_llama())
    _, fired = rewritten(model, load("rope_kv_write", "qk_norm_rope"))
    assert fired == {"rope_kv_write": LAYERS, "qk_norm_rope": 0}


def test_rotated_queries_that_others_use_stay_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    import engine_model_llama.model as llama

    def watched(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int
    ) -> torch.Tensor:
        return attention(query, key, value, layer) + query.sin()

    monkeypatch.setattr(llama, "attention", watched)
    model = random_model("llama", tiny_llama())
    traced, fired = rewritten(model, load("rope_kv_write"))
    assert fired == {"rope_kv_write": 0}
    compare(traced.bind(traced.graph.forward), model)


class Rotating(AttentionPlugin):
    """An attention implementation that rotates, by the reference, and counts."""

    NAME, SUMMARY, ROTATES = "rotating", "rotates itself, for tests", True

    def __init__(self) -> None:
        super().__init__()
        self._inner = Registry().load("attention", "sdpa")()
        self.rotated = self.plain = 0

    def cache_shape(self, *arguments: Any) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._inner.cache_shape(*arguments)
        return shape

    def begin_step(self, inputs: Any) -> Any:
        return self._inner.begin_step(inputs)

    def forward(self, *arguments: Any) -> None:
        self.plain += 1
        self._inner.forward(*arguments)

    def forward_rotating(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotation: Rotation,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: Any,
    ) -> None:
        self.rotated += 1
        tables = (rotation.eps, rotation.cos, rotation.sin, rotation.signed)
        rotate = qk_norm_rope.reference
        query = rotate(query, rotation.query_weight, None, query.shape[1], *tables)
        key = rotate(key, None, rotation.key_weight, 0, *tables)
        self._inner.forward(query, key, value, out, cache, spec, metadata)


@pytest.mark.parametrize(("implementation", "config"), MODELS)
@pytest.mark.parametrize("rotates", [True, False])
def test_tokens_are_those_of_the_plain_model_over_a_paged_cache(
    implementation: str, config: Callable[[], PretrainedConfig], rotates: bool
) -> None:
    model = random_model(implementation, config())
    traced, _ = rewritten(model, load("rope_kv_write"))
    mine: Any = Rotating() if rotates else Registry().load("attention", "sdpa")()
    prompt = [5, 90, 31, 7, 7, 64, 2, 18, 43]
    plain = PagedRunner(model, Registry().load("attention", "sdpa")(), block_size=4)
    other = PagedRunner(model, mine, block_size=4, call=traced.bind(traced.graph.forward))
    for hidden, wanted in zip(served(other, prompt), served(plain, prompt), strict=True):
        torch.testing.assert_close(hidden, wanted, rtol=2e-5, atol=2e-5)
    assert other.greedy(prompt, 8, chunk_size=4) == plain.greedy(prompt, 8, chunk_size=4)
    if rotates:
        assert mine.rotated > 0
        assert mine.plain == 0


def served(runner: PagedRunner, prompt: list[int]) -> Iterator[torch.Tensor]:
    """Prefill in two chunks beside another request, then decode of both."""
    yield from runner.forward([("a", prompt[:5])])
    yield from runner.forward([("a", prompt[5:]), ("b", prompt[:3])])
    yield from runner.forward([("a", [3]), ("b", [4])])


def test_an_implementation_that_says_it_rotates_and_does_not_is_named() -> None:
    class Boasting(Rotating):
        NAME = "boasting"
        forward_rotating = AttentionPlugin.forward_rotating

    model: CausalLM = random_model("llama", tiny_llama())
    traced, _ = rewritten(model, load("rope_kv_write"))
    runner = PagedRunner(model, Boasting(), call=traced.bind(traced.graph.forward))
    with pytest.raises(NotImplementedError, match="boasting declares ROTATES"):
        runner.forward([("a", [1, 2, 3])])
