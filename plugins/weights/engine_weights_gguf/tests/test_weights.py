"""GGUF weights and configurations: equal to the model that was converted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, RopeScalingType
from gguf.quants import dequantize, quantize
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import ModelError
from engine.registry import Registry
from engine.testing.reference import random_reference, reference_logits
from engine_weights_gguf.loader import GGUFWeights
from engine_weights_gguf.rope import llama3_factors

from .conftest import F32, Draft, draft_of, gguf_name, interleaved

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 70000.0},
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "llama tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama with biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama with wide heads": LlamaConfig(**SHAPE, head_dim=32),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=False),
}
QUANTISED = [
    GGMLQuantizationType[name] for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
]


def reference(name: str) -> PreTrainedModel:
    return random_reference(CONFIGS[name], seed=torch.seed() % 2**32)


def load(path: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    loader = GGUFWeights()
    assert loader.handles(path)
    config = loader.config(path)
    pairs = list(loader.tensors(path, config))
    assert len(pairs) == loader.num_tensors(path)
    return config, dict(pairs)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        GGUFWeights().config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def draft(name: str = "llama", kind: GGMLQuantizationType = F32) -> Draft:
    return draft_of(reference(name), kind)


def test_the_loader_is_found_by_its_name() -> None:
    assert Registry().load("weights", "gguf") is GGUFWeights


@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_model_is_read_back_whole(tmp_path: Path, name: str) -> None:
    model = reference(name)
    config, tensors = load(draft_of(model).write(tmp_path / "m.gguf"))
    expected: dict[str, torch.Tensor] = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert tensors.keys() == expected.keys()
    for key, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[key]), key
    assert type(config) is type(model.config)
    for key in (*SHAPE, "tie_word_embeddings", "attention_bias", "mlp_bias"):
        assert getattr(config, key, None) == getattr(model.config, key, None), key
    assert config.head_dim == (getattr(model.config, "head_dim", None) or 64 // 4)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_built_from_the_file_computes_the_same_logits(tmp_path: Path, name: str) -> None:
    model = reference(name)
    config, tensors = load(draft_of(model).write(tmp_path / "m.gguf"))
    again = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    left = again.load_state_dict(tensors, strict=False)
    assert not left.unexpected_keys
    assert set(left.missing_keys) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    prompt = torch.randint(40, (20,)).tolist()
    assert torch.equal(reference_logits(again, prompt), reference_logits(model, prompt))


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_tensors_are_unpacked_as_the_package_unpacks_them(
    tmp_path: Path, kind: GGMLQuantizationType
) -> None:
    model = reference("llama")
    config, tensors = load(draft_of(model, kind).write(tmp_path / "m.gguf"))
    for key, original in model.state_dict().items():
        array = original.numpy()
        if array.ndim == 2:
            packed = quantize(interleaved(key, array, config), kind)
            array = dequantize(packed, kind)
            assert np.array_equal(interleaved(key, tensors[key].numpy(), config), array), key
            assert torch.allclose(tensors[key], original, atol=0.25), key
        else:
            assert np.array_equal(tensors[key].numpy(), array), key


def test_tensors_of_a_file_may_be_of_mixed_types(tmp_path: Path) -> None:
    mixed = draft()
    kinds = [*QUANTISED, F32]
    for i, (key, (array, _)) in enumerate(mixed.tensors.items()):
        if array.ndim == 2:
            mixed.tensors[key] = (array, kinds[i % len(kinds)])
    config, tensors = load(mixed.write(tmp_path / "m.gguf"))
    for key, tensor in tensors.items():
        array, kind = mixed.tensors[gguf_name(key)]
        expected = dequantize(quantize(array, kind), kind)
        assert np.array_equal(interleaved(key, tensor.numpy(), config), expected), key


def test_tensors_are_writable_copies(tmp_path: Path) -> None:
    path = draft().write(tmp_path / "m.gguf")
    before = path.read_bytes()
    for tensor in load(path)[1].values():
        tensor.zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")],
)
def test_the_dtype_is_that_of_most_of_the_file(tmp_path: Path, kind: str, dtype: str) -> None:
    path = draft("qwen2", GGMLQuantizationType[kind]).write(tmp_path / "m.gguf")
    assert str(GGUFWeights().config(path).dtype).removeprefix("torch.") == dtype


# Rotary positions.


def test_linear_and_yarn_scaling_are_taken_over(tmp_path: Path) -> None:
    scaled = draft()
    scaled.values.update(
        {".rope.scaling.type": RopeScalingType.LINEAR.value, ".rope.scaling.factor": 4.0}
    )
    config = GGUFWeights().config(scaled.write(tmp_path / "linear.gguf"))
    assert config.rope_parameters == {"rope_type": "linear", "rope_theta": 70000.0, "factor": 4.0}
    scaled.values.update(
        {
            ".rope.scaling.type": RopeScalingType.YARN.value,
            ".rope.scaling.original_context_length": 12,
        }
    )
    config = GGUFWeights().config(scaled.write(tmp_path / "yarn.gguf"))
    assert config.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": 70000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 12,
    }


def test_another_scaling_is_refused(tmp_path: Path) -> None:
    scaled = draft()
    scaled.values[".rope.scaling.type"] = "longrope"
    assert "rope.scaling.type='longrope' isn't supported" in refusal(
        scaled.write(tmp_path / "m.gguf")
    )


def llama3(**changes: Any) -> PretrainedConfig:
    parameters = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        **changes,
    }
    return LlamaConfig(**{**SHAPE, "head_dim": 64, "rope_parameters": parameters})


def frequency_factors(config: PretrainedConfig) -> np.ndarray[Any, np.dtype[np.float32]]:
    """By what transformers' rule divides the frequencies, as a converter would store it."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 64, 2).float() / 64)
    return np.asarray((plain / scaled).numpy(), dtype=np.float32)


def test_llama3_factors_follow_the_rule_of_transformers() -> None:
    config = llama3(factor=8.0)
    expected = frequency_factors(config)
    assert np.allclose(llama3_factors(500000.0, 64, 8.0, 1.0, 4.0, 8192), expected, rtol=1e-4)
    assert len({float(f) for f in expected if 1 < f < 8}) > 1, "some must be interpolated"


def test_llama3_scaling_is_recovered_from_its_factors(tmp_path: Path) -> None:
    config = llama3()
    model = random_reference(config)
    scaled = draft_of(model)
    scaled.tensors["rope_freqs.weight"] = (frequency_factors(config), F32)
    again, tensors = load(scaled.write(tmp_path / "m.gguf"))
    assert again.rope_parameters["factor"] == pytest.approx(32.0, rel=1e-5)
    again.rope_parameters["factor"] = 32.0
    assert again.rope_parameters == config.rope_parameters
    assert tensors.keys() == model.state_dict().keys()


def test_factors_of_another_rule_are_refused(tmp_path: Path) -> None:
    config = llama3(low_freq_factor=2.0)
    scaled = draft_of(random_reference(config))
    scaled.tensors["rope_freqs.weight"] = (frequency_factors(config), F32)
    assert "rope_freqs.weight doesn't follow" in refusal(scaled.write(tmp_path / "m.gguf"))


# What isn't supported, and the sentence that says so.


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    other = draft()
    other.architecture = "mamba"
    text = refusal(other.write(tmp_path / "m.gguf"))
    assert "general.architecture='mamba' isn't supported" in text
    assert "llama, qwen2, qwen3" in text


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    other = draft()
    other.tensors["blk.0.ffn_gate_exps.weight"] = (np.zeros((2, 32), np.float32), F32)
    assert "tensor 'blk.0.ffn_gate_exps.weight'" in refusal(other.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (".expert_count", 8),
        (".rope.dimension_count", 8),
        (".attention.value_length", 8),
        (".attention.sliding_window", 16),
        (".attention.head_count", [4, 4]),
        (".feed_forward_length", "many"),
        (".attention.layer_norm_rms_epsilon", "small"),
    ],
)
def test_a_value_that_is_not_supported_is_named(tmp_path: Path, key: str, value: Any) -> None:
    other = draft()
    other.values[key] = value
    assert f"llama{key}={value!r} isn't supported" in refusal(other.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("key", [".context_length", ".block_count", ".attention.head_count"])
def test_a_missing_value_is_named(tmp_path: Path, key: str) -> None:
    other = draft()
    del other.values[key]
    assert f"its metadata lacks llama{key}" in refusal(other.write(tmp_path / "m.gguf"))


def test_inconsistent_metadata_is_one_sentence(tmp_path: Path) -> None:
    other = draft()
    other.values[".attention.head_count"] = 3
    other.values[".attention.key_length"] = 16
    other.values[".rope.dimension_count"] = 16
    assert "its metadata is inconsistent" in refusal(other.write(tmp_path / "m.gguf"))


def test_a_type_that_cannot_be_unpacked_is_named(tmp_path: Path) -> None:
    path = draft().write(tmp_path / "m.gguf")
    data = path.read_bytes()
    name = b"blk.1.ffn_norm.weight"
    at = data.index(name) + len(name) + 4 + 8
    assert int.from_bytes(data[at : at + 4], "little") == GGMLQuantizationType.F32
    int32 = int(GGMLQuantizationType.I32).to_bytes(4, "little")
    path.write_bytes(data[:at] + int32 + data[at + 4 :])
    assert "tensor 'blk.1.ffn_norm.weight' has the type I32" in refusal(path)


def test_a_file_without_an_embedding_is_refused(tmp_path: Path) -> None:
    other = draft()
    del other.tensors["token_embd.weight"]
    assert "no tensor 'token_embd.weight'" in refusal(other.write(tmp_path / "m.gguf"))


def test_a_part_of_a_split_model_says_how_to_merge_it(tmp_path: Path) -> None:
    other = draft()
    other.values["split.count"] = 3
    assert "llama-gguf-split --merge" in refusal(other.write(tmp_path / "m.gguf"))


# Which paths it takes.


def test_a_folder_with_one_file_and_no_safetensors_is_taken(tmp_path: Path) -> None:
    path = draft("qwen2").write(tmp_path / "m.GGUF")
    (tmp_path / "config.json").write_text("{}")
    config, tensors = load(tmp_path)
    assert config.model_type == "qwen2"
    assert tensors.keys() == load(path)[1].keys()
    (tmp_path / "model.safetensors").touch()
    assert not GGUFWeights.handles(tmp_path)


def test_a_folder_with_another_number_of_files_is_refused(tmp_path: Path) -> None:
    assert not GGUFWeights.handles(tmp_path)
    assert "holds 0 .gguf files" in refusal(tmp_path)
    path = draft().write(tmp_path / "a.gguf")
    shutil.copy(path, tmp_path / "b.gguf")
    assert not GGUFWeights.handles(tmp_path)
    assert "holds 2 .gguf files" in refusal(tmp_path)


def test_another_file_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert not GGUFWeights.handles(tmp_path / "notes.txt")
