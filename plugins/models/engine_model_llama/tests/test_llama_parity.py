"""Every member of the family continues prompts exactly as transformers does, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from engine.testing.paged import PagedRunner
from engine.testing.reference import (
    build_like,
    random_reference,
    reference_logits,
    reference_tokens,
)
from engine_attention_sdpa.attention import SdpaAttention
from engine_model_llama.plugin import LlamaFamily

VOCABULARY = 97
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def rope(kind: str, **parameters: object) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **parameters}}


LONGROPE: dict[str, Any] = {
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 256,
    "factor": 2.0,
}
LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "llama-tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama-biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama-head-dim": LlamaConfig(**SHAPE, head_dim=20),
    "llama-gelu": LlamaConfig(**SHAPE, hidden_act="gelu_pytorch_tanh"),
    "llama-one-kv-head": LlamaConfig(**{**SHAPE, "num_key_value_heads": 1}),
    "llama-all-kv-heads": LlamaConfig(**{**SHAPE, "num_key_value_heads": 6}),
    "llama-theta": LlamaConfig(**SHAPE, **rope("default", rope_theta=500.0)),
    "llama-rope-llama3": LlamaConfig(**SHAPE, **rope("llama3", **LLAMA3)),
    "llama-rope-linear": LlamaConfig(**SHAPE, **rope("linear", factor=3.0)),
    "llama-rope-dynamic": LlamaConfig(**SHAPE, **rope("dynamic", factor=2.0)),
    "llama-rope-yarn": LlamaConfig(
        **SHAPE, **rope("yarn", factor=4.0, original_max_position_embeddings=64)
    ),
    "llama-rope-longrope": LlamaConfig(**SHAPE, **rope("longrope", **LONGROPE)),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "mistral-window": MistralConfig(**SHAPE, sliding_window=5),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2-some-layers-slide": Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "qwen3-bias-tied": Qwen3Config(
        **SHAPE, head_dim=16, attention_bias=True, tie_word_embeddings=True
    ),
}


def prompt_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_equal_those_of_transformers(name: str) -> None:
    reference = random_reference(CONFIGS[name], seed=3)
    model = build_like(LlamaFamily(), reference)
    runner = PagedRunner(model, SdpaAttention(), block_size=4, shuffle=1, fill=float("nan"))
    for seed, length in enumerate((1, 23)):
        prompt = prompt_of(length, seed)
        expected = reference_tokens(reference, prompt, 16)
        assert runner.greedy(prompt, 16) == expected
        assert runner.greedy(prompt, 16, chunk_size=7) == expected
    # Varied tokens: a model that repeats itself would prove little.
    assert len(set(expected)) > 3


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_within_rounding_of_those_of_transformers(name: str) -> None:
    reference = random_reference(CONFIGS[name], seed=4)
    runner = PagedRunner(build_like(LlamaFamily(), reference), SdpaAttention(), padding=3)
    prompt = prompt_of(31, 5)
    (logits,) = runner.logits([("a", prompt)])
    torch.testing.assert_close(logits, reference_logits(reference, prompt), atol=1e-4, rtol=1e-4)


def test_a_batch_of_mixed_steps_equals_each_prompt_alone() -> None:
    reference = random_reference(CONFIGS["qwen2-some-layers-slide"], seed=6)
    model = build_like(LlamaFamily(), reference)
    runner = PagedRunner(model, SdpaAttention(), num_blocks=128, block_size=4, padding=2)
    prompts = {name: prompt_of(5 + 3 * name, name) for name in range(10)}
    expected = {name: reference_tokens(reference, prompts[name], 6) for name in prompts}
    made: dict[int, list[int]] = {name: [] for name in prompts}
    waiting = dict(prompts)
    while any(len(tokens) < 6 for tokens in made.values()):
        # Prompts enter one a step, in chunks of at most 8, beside those that decode already.
        entering = next(iter(waiting), None)
        chunks = [(name, made[name][-1:]) for name in prompts if made[name] and len(made[name]) < 6]
        if entering is not None:
            chunks.append((entering, waiting[entering][:8]))
            waiting[entering] = waiting[entering][8:]
        for (name, _), logits in zip(chunks, runner.logits(chunks), strict=True):
            if not waiting.get(name):
                waiting.pop(name, None)
                made[name].append(int(logits[-1].argmax()))
    assert made == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama-rope-llama3", "qwen3"])
def test_half_precision_is_within_its_rounding(name: str, dtype: torch.dtype) -> None:
    reference = random_reference(CONFIGS[name], seed=7)
    model = build_like(LlamaFamily(), reference, dtype=dtype)
    (logits,) = PagedRunner(model, SdpaAttention()).logits([("a", prompt_of(20, 8))])
    assert logits.dtype == dtype
    exact = reference_logits(reference, prompt_of(20, 8))
    # The error of transformers' own half-precision run is the yardstick.
    half = random_reference(CONFIGS[name], seed=7, dtype=dtype)
    theirs = reference_logits(half, prompt_of(20, 8)).float()
    assert (logits.float() - exact).abs().max() < 2 * (theirs - exact).abs().max()


def test_longrope_beyond_the_original_context_uses_the_long_factors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parameters = rope("longrope", **{**LONGROPE, "original_max_position_embeddings": 16})
    config = LlamaConfig(**SHAPE, **parameters)
    reference = random_reference(config, seed=9)
    model = build_like(LlamaFamily(), reference)
    assert "max_position_embeddings" in caplog.text
    prompt = prompt_of(24, 10)
    (logits,) = PagedRunner(model, SdpaAttention()).logits([("a", prompt)])
    torch.testing.assert_close(logits, reference_logits(reference, prompt), atol=1e-4, rtol=1e-4)


def test_a_tied_head_shares_the_memory_of_the_embedding() -> None:
    model = build_like(LlamaFamily(), random_reference(CONFIGS["llama-tied"]))
    names = [name for name, _ in model.named_parameters()]
    size = SHAPE["vocab_size"] * SHAPE["hidden_size"]
    assert sum(p.numel() == size for p in model.parameters()) == 1
    assert "embedding" in names


def test_the_forward_pass_does_not_depend_on_the_batch() -> None:
    from engine.forward_context import ForwardContext, forward_context
    from engine.testing.paged import attention_inputs

    model = build_like(LlamaFamily(), random_reference(CONFIGS["qwen3"]))
    attention = SdpaAttention()
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=keep, fullgraph=True, dynamic=True)
    caches = [torch.zeros(attention.cache_shape(spec, 8, 16)) for spec in model.attention_specs]
    for length in (5, 9, 3):
        inputs = attention_inputs([length], [length], [[1]], 16)
        context = ForwardContext(
            inputs.shape, attention, attention.begin_step(inputs), model.attention_specs, caches
        )
        ids = torch.arange(length)
        with torch.inference_mode(), forward_context(context):
            torch.testing.assert_close(compiled(ids, ids), model(ids, ids))
    assert len(graphs) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama-rope-llama3", "mistral-window", "qwen2", "qwen3"])
def test_greedy_tokens_on_the_gpu_equal_those_of_transformers_on_the_cpu(name: str) -> None:
    reference = random_reference(CONFIGS[name], seed=3)
    model = build_like(LlamaFamily(), reference, device="cuda")
    runner = PagedRunner(model, SdpaAttention(), block_size=4, shuffle=1, padding=2)
    prompt = prompt_of(23, 1)
    assert runner.greedy(prompt, 16, chunk_size=9) == reference_tokens(reference, prompt, 16)
