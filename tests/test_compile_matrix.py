"""Every compile mode with every backend gives the tokens of the model's own Python.

Models of three kinds over the paged cache, in float32: decode of one token, two and seven tokens,
prefill, and both at once. Where nothing may round otherwise the bits are equal, elsewhere the
greedy tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from transformers import GPTNeoXConfig, LlamaConfig, PretrainedConfig, Qwen3Config

from engine.models import CausalLM
from engine.plugin import Numerics
from engine.registry import Registry
from engine.strategies import CompiledModel
from engine.testing.compiling import compile_job
from engine.testing.paged import PagedRunner
from engine.testing.reference import build_like, random_reference

REGISTRY = Registry()
MODES = [
    n for n in REGISTRY.names("compile_modes") if REGISTRY.load("compile_modes", n).USES_BACKEND
]
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
MODELS: dict[str, tuple[str, PretrainedConfig]] = {
    "Llama": ("llama", LlamaConfig(num_key_value_heads=2, **SIZES)),
    "Qwen3": ("llama", Qwen3Config(num_key_value_heads=2, head_dim=8, **SIZES)),
    "GPT-NeoX by the fallback": ("transformers", GPTNeoXConfig(**SIZES)),
}
SETTINGS: dict[str, Any] = {"max_num_tokens": 48, "exact_sizes": (2,), "ranges": (8,)}


@cache
def model_of(name: str) -> CausalLM:
    implementation, config = MODELS[name]
    plugin = REGISTRY.load("models", implementation)()
    return build_like(plugin, random_reference(config, seed=3)).requires_grad_(False)


def compiled(mode: str, backend: str, model: CausalLM, **settings: Any) -> Iterator[CompiledModel]:
    strategy = REGISTRY.load("compile_modes", mode)()
    made = REGISTRY.load("backends", backend)()
    yield strategy.compile(compile_job(model, made, **settings))
    strategy.close()


def steps() -> list[list[tuple[str, list[int]]]]:
    """Return a short service: prefill of 1, 2 and 7 tokens, decode, and mixtures of both."""

    def tokens(count: int) -> list[int]:
        return [random.randrange(97) for _ in range(count)]

    return [
        [("a", tokens(1))],
        [("b", tokens(2))],
        [("a", tokens(7))],
        [("a", tokens(1)), ("b", tokens(1))],
        [("a", tokens(1)), ("c", tokens(20)), ("b", tokens(1))],
        [(name, tokens(1)) for name in "abc"],
        [("d", tokens(40)), *((name, tokens(1)) for name in "abc")],
        [("c", tokens(1))],
    ]


def both(model: CausalLM, call: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Run the same steps through the model and its compiled form; yield hidden of both."""
    attention = REGISTRY.load("attention", "sdpa")
    plain, other = PagedRunner(model, attention()), PagedRunner(model, attention(), call=call)
    for chunks in steps():
        yield from zip(plain.forward(chunks), other.forward(chunks), strict=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_a_backend_that_runs_the_graph_as_it_is_gives_the_same_bits(mode: str, name: str) -> None:
    model = model_of(name)
    for made in compiled(mode, "eager", model, **SETTINGS):
        for expected, hidden in both(model, made.call):
            assert torch.equal(hidden, expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_backend_of_torch_compile_gives_the_same_tokens(mode: str) -> None:
    model = model_of("Llama")
    for made in compiled(mode, "aot_eager", model, max_num_tokens=48):
        check_tokens(model, made.call)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_compiled_kernels_give_the_same_tokens(mode: str, name: str) -> None:
    if "inductor" not in REGISTRY.names("backends"):
        pytest.skip("the backend isn't installed")
    model = model_of(name)
    for made in compiled(mode, "inductor", model, max_num_tokens=48):
        check_tokens(model, made.call)


def check_tokens(model: CausalLM, call: Any) -> None:
    """Check hidden states within rounding, and greedy continuations token by token."""
    for expected, hidden in both(model, call):
        torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)
    attention = REGISTRY.load("attention", "sdpa")
    prompt = [random.randrange(97) for _ in range(11)]
    plain, other = PagedRunner(model, attention()), PagedRunner(model, attention(), call=call)
    for chunk_size in (None, 4):
        expected_tokens = plain.greedy(prompt, 12, chunk_size=chunk_size)
        assert other.greedy(prompt, 12, chunk_size=chunk_size) == expected_tokens


def test_backends_say_what_they_may_change() -> None:
    kinds = {name: REGISTRY.load("backends", name).NUMERICS for name in ("eager", "aot_eager")}
    assert kinds == {"eager": Numerics.BITWISE, "aot_eager": Numerics.TOLERANCE}
