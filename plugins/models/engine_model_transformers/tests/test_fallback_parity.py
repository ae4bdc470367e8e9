"""Transformers' own modules over the paged cache continue prompts as transformers does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Cohere2Config,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    StableLmConfig,
)

from engine.testing.paged import PagedRunner
from engine.testing.reference import (
    build_like,
    random_reference,
    reference_logits,
    reference_tokens,
)
from engine_attention_sdpa.attention import SdpaAttention
from engine_model_transformers.plugin import TransformersFallback

VOCABULARY = 61
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GATED: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "num_key_value_heads": 2}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.2],
    "long_factor": [3.0, 5.0],
    "partial_rotary_factor": 0.5,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "gpt-neox": GPTNeoXConfig(**SHAPE, intermediate_size=64, tie_word_embeddings=False),
    "gpt-neox-sequential": GPTNeoXConfig(
        **SHAPE, intermediate_size=64, use_parallel_residual=False
    ),
    "gemma2": Gemma2Config(
        **GATED,
        head_dim=12,
        sliding_window=6,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
        tie_word_embeddings=False,
    ),
    "phi3-window": Phi3Config(**GATED, sliding_window=9, tie_word_embeddings=False),
    "phi3-longrope": Phi3Config(
        **GATED, rope_parameters=LONGROPE, original_max_position_embeddings=128
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        tie_word_embeddings=False,
        scale_attn_by_inverse_layer_idx=True,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "opt": OPTConfig(**SHAPE, ffn_dim=48, word_embed_proj_dim=16),
    "mixtral": MixtralConfig(**GATED, num_local_experts=4, sliding_window=None),
    "cohere2": Cohere2Config(**GATED, sliding_window=6, tie_word_embeddings=False),
    "stablelm": StableLmConfig(
        **GATED,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
    ),
    "llama": LlamaConfig(**GATED, tie_word_embeddings=True),
}


def prompt_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


@pytest.mark.parametrize("name", ["gpt-neox", "gemma2", "phi3-window", "gpt2", "opt", "llama"])
def test_greedy_tokens_equal_those_of_transformers(name: str) -> None:
    reference = random_reference(CONFIGS[name], seed=1)
    model = build_like(TransformersFallback(), reference)
    runner = PagedRunner(
        model, SdpaAttention(), block_size=4, shuffle=2, fill=float("nan"), padding=2
    )
    prompt = prompt_of(19, 2)
    expected = reference_tokens(reference, prompt, 10)
    assert runner.greedy(prompt, 10) == expected
    assert runner.greedy(prompt, 10, chunk_size=5) == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_within_rounding_of_those_of_transformers(name: str) -> None:
    reference = random_reference(CONFIGS[name], seed=3)
    model = build_like(TransformersFallback(), reference)
    runner = PagedRunner(model, SdpaAttention(), block_size=4)
    prompts = [prompt_of(length, length) for length in (3, 21, 1, 8)]
    for prompt, logits in zip(prompts, runner.logits(list(enumerate(prompts))), strict=True):
        torch.testing.assert_close(
            logits, reference_logits(reference, prompt), atol=1e-4, rtol=1e-4
        )
        # Different positions choose different tokens: agreement means something.
    assert len({int(row.argmax()) for row in logits}) > 2


def test_gemma2_alternates_windows_and_caps_scores() -> None:
    model = build_like(TransformersFallback(), random_reference(CONFIGS["gemma2"]))
    assert [spec.sliding_window for spec in model.attention_specs] == [6, None]
    assert {spec.soft_cap for spec in model.attention_specs} == {3.0}
    assert {spec.scale for spec in model.attention_specs} == {20**-0.5}
    assert model.compute_logits(100 * torch.randn(5, 32)).abs().max() <= 4.0


def test_longrope_beyond_the_original_context_uses_the_long_factors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = Phi3Config(**GATED, rope_parameters=LONGROPE, original_max_position_embeddings=16)
    reference = random_reference(config, seed=4)
    model = build_like(TransformersFallback(), reference)
    assert "factors for long contexts" in caplog.text
    prompt = prompt_of(24, 5)
    (logits,) = PagedRunner(model, SdpaAttention()).logits([("a", prompt)])
    torch.testing.assert_close(logits, reference_logits(reference, prompt), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_within_its_rounding(dtype: torch.dtype) -> None:
    reference = random_reference(CONFIGS["gpt-neox"], seed=6)
    model = build_like(TransformersFallback(), reference, dtype=dtype)
    (logits,) = PagedRunner(model, SdpaAttention()).logits([("a", prompt_of(20, 7))])
    assert logits.dtype == dtype
    exact = reference_logits(reference, prompt_of(20, 7))
    half = random_reference(CONFIGS["gpt-neox"], seed=6, dtype=dtype)
    theirs = reference_logits(half, prompt_of(20, 7)).float()
    assert (logits.float() - exact).abs().max() < 2 * (theirs - exact).abs().max()


def test_building_leaves_the_configuration_as_it_was() -> None:
    config = Gemma2Config(**GATED, head_dim=8)
    before = config.to_dict()
    TransformersFallback().build(config, dtype=torch.float32, device=torch.device("cpu"))
    assert config.to_dict() == before
    assert config._attn_implementation is None or config._attn_implementation != "engine"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gpt-neox", "gemma2", "phi3-longrope", "gpt2"])
def test_greedy_tokens_on_the_gpu_equal_those_of_transformers_on_the_cpu(name: str) -> None:
    reference = random_reference(CONFIGS[name], seed=1)
    model = build_like(TransformersFallback(), reference, device="cuda")
    runner = PagedRunner(model, SdpaAttention(), block_size=4, shuffle=2, padding=2)
    prompt = prompt_of(19, 2)
    assert runner.greedy(prompt, 10, chunk_size=8) == reference_tokens(reference, prompt, 10)
