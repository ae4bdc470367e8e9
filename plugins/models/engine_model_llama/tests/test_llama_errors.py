"""What can't be served is refused in one sentence that names it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config

from engine.errors import ModelError
from engine.models import CausalLM
from engine.testing.reference import random_reference
from engine_model_llama.plugin import LlamaFamily

SHAPE: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def build(config: PretrainedConfig) -> CausalLM:
    return LlamaFamily().build(config, dtype=torch.float32, device=torch.device("cpu"))


def changed(config: PretrainedConfig, **fields: object) -> PretrainedConfig:
    for name, value in fields.items():
        object.__setattr__(config, name, value)
    return config


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return dict(random_reference(LlamaConfig(**SHAPE)).state_dict())


def test_the_family_is_recognised_by_architecture_or_model_type() -> None:
    assert LlamaFamily.handles(LlamaConfig(architectures=["LlamaForCausalLM"]))
    assert LlamaFamily.handles(MistralConfig())
    assert LlamaFamily.handles(Qwen2Config())
    assert not LlamaFamily.handles(GPT2Config())
    assert not LlamaFamily.handles(LlamaConfig(architectures=["LlamaForSequenceClassification"]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "rope_type='spiral'"),
        (
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
            "partial_rotary_factor=0.5",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters differ by layer type (full_attention)",
        ),
    ],
)
def test_an_unsupported_field_is_named_with_a_remedy(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(changed(LlamaConfig(**SHAPE), **fields))
    assert named in str(caught.value)
    assert "--model-impl transformers" in str(caught.value)


def test_unknown_layer_types_and_windows_are_refused() -> None:
    with pytest.raises(ModelError, match="layer_types='chunked_attention'"):
        build(
            changed(
                Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=4),
                layer_types=["full_attention", "chunked_attention"],
            )
        )
    with pytest.raises(ModelError, match="layer_types='1 entries'"):
        build(
            changed(
                Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=4),
                layer_types=["full_attention"],
            )
        )
    with pytest.raises(ModelError, match="sliding_window=0"):
        build(changed(MistralConfig(**SHAPE), sliding_window=0))


def test_a_quantised_checkpoint_is_refused() -> None:
    config = changed(LlamaConfig(**SHAPE), quantization_config={"quant_method": "awq"})
    with pytest.raises(ModelError, match=r"quantization_config \(awq\)"):
        build(config)


def test_a_missing_tensor_is_named(state: dict[str, torch.Tensor]) -> None:
    del state["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(ModelError, match=r"misses model\.layers\.1\.self_attn\.k_proj\.weight"):
        build(LlamaConfig(**SHAPE)).load_weights(state.items())


def test_an_unknown_tensor_is_named(state: dict[str, torch.Tensor]) -> None:
    state["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(16)
    with pytest.raises(ModelError, match=r"unknown model\.layers\.0\.self_attn\.q_proj\.bias"):
        build(LlamaConfig(**SHAPE)).load_weights(state.items())


def test_many_misfits_are_counted(state: dict[str, torch.Tensor]) -> None:
    kept = {name: t for name, t in state.items() if ".layers.0." not in name}
    with pytest.raises(ModelError, match="and 4 more"):
        build(LlamaConfig(**SHAPE)).load_weights(kept.items())


def test_a_tensor_of_the_wrong_shape_is_named(state: dict[str, torch.Tensor]) -> None:
    state["model.norm.weight"] = torch.zeros(17)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[17\].*\[16\]"):
        build(LlamaConfig(**SHAPE)).load_weights(state.items())


def test_derived_buffers_of_old_checkpoints_are_ignored(state: dict[str, torch.Tensor]) -> None:
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(2)
    build(LlamaConfig(**SHAPE)).load_weights(state.items())


def test_tied_tensors_may_come_once_or_twice_but_must_agree(
    state: dict[str, torch.Tensor],
) -> None:
    config = LlamaConfig(**SHAPE, tie_word_embeddings=True)
    with pytest.raises(ModelError, match=r"lm_head\.weight differ.*tie_word_embeddings"):
        build(config).load_weights(state.items())
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    build(config).load_weights(state.items())
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        once = {key: tensor for key, tensor in state.items() if key != name}
        model = build(config)
        model.load_weights(once.items())
        hidden = torch.randn(2, 16)
        expected = hidden @ state["lm_head.weight"].T
        torch.testing.assert_close(model.compute_logits(hidden), expected)


def test_tensors_may_be_streamed_one_at_a_time(state: dict[str, torch.Tensor]) -> None:
    alive = 0

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal alive
        for name in reversed(list(state)):
            alive += 1
            yield name, state[name].double()

    model = build(LlamaConfig(**SHAPE))
    model.load_weights(stream())
    assert alive == len(state)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
