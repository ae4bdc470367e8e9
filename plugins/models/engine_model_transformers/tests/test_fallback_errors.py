"""A model that can't be served correctly is refused, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    BartConfig,
    BertConfig,
    BloomConfig,
    DeepseekV3Config,
    FalconConfig,
    FalconH1Config,
    GPT2Config,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    PretrainedConfig,
    T5Config,
)

from engine.errors import ModelError
from engine.models import CausalLM
from engine.testing.reference import build_like, random_reference
from engine_model_transformers.plugin import TransformersFallback

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GATED: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "num_key_value_heads": 2}


def build(config: PretrainedConfig) -> CausalLM:
    return TransformersFallback().build(config, dtype=torch.float32, device=torch.device("cpu"))


REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "encoder-decoder": (BartConfig(), "encoder-decoder"),
    "both-directions": (
        BertConfig(**SHAPE, intermediate_size=48),
        "isn't causal|not causal",
    ),
    "state-space": (
        MambaConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2),
        "position_ids",
    ),
    "alibi": (BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4), "ALiBi"),
    "own-attention": (FalconConfig(**SHAPE), "attention implementation"),
    "value-size": (
        DeepseekV3Config(**{**GATED, "num_key_value_heads": 4}, n_routed_experts=8),
        "values have head size 128, its keys 192",
    ),
    "sinks": (GptOssConfig(**GATED, head_dim=8, num_local_experts=4), "asks for s_aux"),
    "chunks": (
        Llama4TextConfig(
            **GATED,
            head_dim=8,
            attention_chunk_size=16,
            num_local_experts=2,
            intermediate_size_mlp=48,
        ),
        "cut into chunks",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_engine_lacks_is_refused_with_the_reason(kind: str) -> None:
    config, reason = REFUSED[kind]
    assert TransformersFallback.handles(config)
    with pytest.raises(ModelError, match=reason):
        build(config)


def test_only_causal_language_models_are_handled() -> None:
    assert TransformersFallback.handles(GPT2Config())
    assert not TransformersFallback.handles(T5Config())
    assert not TransformersFallback.handles({"model_type": "gpt2"})


def test_tokens_that_meet_outside_attention_are_noticed_with_the_weights() -> None:
    config = FalconH1Config(
        **GATED, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8
    )
    reference = random_reference(config, seed=1)
    with pytest.raises(ModelError, match="meet outside attention"):
        build_like(TransformersFallback(), reference)


def test_a_checkpoint_without_head_or_with_derived_buffers_fits() -> None:
    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    state = random_reference(config, seed=2).state_dict()
    short = {
        name.removeprefix("transformer."): tensor
        for name, tensor in state.items()
        if name != "lm_head.weight"
    }
    short["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    one, other = build(config), build(config)
    one.load_weights(state.items())
    other.load_weights(short.items())
    hidden = torch.randn(3, 32)
    assert torch.equal(one.compute_logits(hidden), other.compute_logits(hidden))
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_experts_that_a_checkpoint_keeps_apart_are_joined(tmp_path: Path) -> None:
    config = MixtralConfig(**GATED, num_local_experts=4)
    reference = random_reference(config, seed=3)
    reference.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.experts.0.w1.weight" in stored
    model = build(config)
    model.load_weights(stored.items())
    same = build_like(TransformersFallback(), reference)
    for mine, theirs in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    del stored["model.layers.1.self_attn.q_proj.weight"]
    with pytest.raises(ModelError, match=r"misses model\.layers\.1\.self_attn\.q_proj"):
        build(config).load_weights(stored.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("model.norm.weight"), r"misses model\.norm\.weight"),
        (lambda state: state.update(extra=torch.ones(1)), "unknown extra"),
        (
            lambda state: state.update({"model.norm.weight": torch.ones(3)}),
            r"model\.norm\.weight has shape \[3\]",
        ),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(change: Any, message: str) -> None:
    config = LlamaConfig(**GATED)
    state = dict(random_reference(config).state_dict())
    change(state)
    with pytest.raises(ModelError, match=message):
        build(config).load_weights(state.items())
