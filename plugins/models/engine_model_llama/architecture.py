"""What a transformers configuration says about a model of the family, checked and named once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import ModelError
from engine_model_llama.rotary import rotary_frequencies

FAMILY = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architectures, and the model type of each."""

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True)
class Architecture:
    """The shape of one model.

    Attributes:
        windows: sliding window of each layer; None sees everything.
        qkv_bias, output_bias, mlp_bias: which projections have a bias.
        qk_norm: queries and keys are normalised per head before they are rotated.
        inv_freq: [D / 2] float32, radians per position.
        rotary_scale: factor on cosines and sines.
        max_positions: positions that the model was made for.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    activation: str
    norm_eps: float
    tied: bool
    inv_freq: torch.Tensor
    rotary_scale: float
    max_positions: int


def architecture_name(config: Any) -> str:
    """Return the configuration's architecture, or the one that its model type implies."""
    named = getattr(config, "architectures", None)
    if named:
        return str(named[0])
    implied = {model_type: name for name, model_type in FAMILY.items()}
    return implied.get(getattr(config, "model_type", ""), "")


def refuse(field: str, value: Any, allowed: str) -> ModelError:
    """Make the error for a configuration that the family can't express."""
    return ModelError(
        f"config.json: {field}={value!r} isn't supported by the llama implementation "
        f"({allowed}); try --model-impl transformers."
    )


def read_architecture(config: Any) -> Architecture:
    """Read and check a configuration.

    Raises:
        ModelError: a field asks for something the family doesn't have; names the field.
    """
    kind = FAMILY[architecture_name(config)]
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    _check(config, heads, kv_heads)
    bias = kind in ("llama", "qwen3") and bool(getattr(config, "attention_bias", False))
    inv_freq, scale = rotary_frequencies(config, head_size)
    return Architecture(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        windows=_windows(kind, config),
        qkv_bias=bias or kind == "qwen2",
        output_bias=bias,
        mlp_bias=kind == "llama" and bool(getattr(config, "mlp_bias", False)),
        qk_norm=kind == "qwen3",
        activation=config.hidden_act,
        norm_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        inv_freq=inv_freq,
        rotary_scale=scale,
        max_positions=config.max_position_embeddings,
    )


def _check(config: Any, heads: int, kv_heads: int) -> None:
    if config.hidden_act not in ACTIVATIONS:
        raise refuse("hidden_act", config.hidden_act, f"one of {', '.join(ACTIVATIONS)}")
    if heads % kv_heads:
        raise refuse("num_key_value_heads", kv_heads, f"a divisor of {heads} attention heads")
    if getattr(config, "is_heterogeneous", False):
        raise refuse("per_layer_config", "…", "all layers have one shape")
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        method = (
            quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        )
        raise ModelError(
            f"config.json: quantization_config ({method}) isn't supported; "
            "use an unquantised checkpoint of this model."
        )


def _windows(kind: str, config: Any) -> tuple[int | None, ...]:
    """Return each layer's sliding window."""
    count: int = config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    if kind == "llama" or window is None:
        return (None,) * count
    if not isinstance(window, int) or window < 1:
        raise refuse("sliding_window", window, "a number of tokens from 1, or null")
    if kind == "mistral":
        return (window,) * count
    return tuple(window if slides else None for slides in _sliding_layers(config, count))


def _sliding_layers(config: Any, count: int) -> list[bool]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        first = config.max_window_layers if getattr(config, "use_sliding_window", False) else count
        return [layer >= first for layer in range(count)]
    if len(kinds) != count:
        raise refuse("layer_types", f"{len(kinds)} entries", f"one for each of {count} layers")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise refuse("layer_types", kind, "full_attention or sliding_attention")
    return [kind == "sliding_attention" for kind in kinds]
