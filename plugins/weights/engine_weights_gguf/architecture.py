"""From GGUF metadata to transformers configurations, and from GGUF tensor names to theirs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from engine.errors import ModelError
from engine_weights_gguf.dequantize import can_unpack
from engine_weights_gguf.reader import GGUFFile
from engine_weights_gguf.rope import FACTORS, rope_parameters
from engine_weights_gguf.vocabulary import read_special_ids


@dataclass(frozen=True)
class Family:
    """How one GGUF architecture maps to transformers.

    Attributes:
        model_type: transformers' name of the configuration.
        architecture: transformers' name of the model.
        interleaved: the rows of q and k lie in interleaved rope order (pairs are neighbours);
            transformers' are half-split (pairs are half a head apart).
    """

    model_type: str
    architecture: str
    interleaved: bool


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", interleaved=False),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", interleaved=False),
}

_HEAD = "output.weight"
_EMBEDDING = "token_embd.weight"
_NAMES = {
    _EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _HEAD: "lm_head.weight",
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROTATED = re.compile(r"self_attn\.([qk])_proj\.")


def read_family(file: GGUFFile) -> Family:
    """Return the family of a file.

    Raises:
        ModelError: the file is a part, or of an architecture that isn't supported.
    """
    if file.metadata.get("split.count", 1) != 1:
        raise ModelError(
            f"{file.path}: is one part of a split model; merge the parts with "
            "`llama-gguf-split --merge` and pass the result"
        )
    name = str(file.metadata.get("general.architecture"))
    if name not in FAMILIES:
        raise ModelError(
            f"{file.path}: general.architecture={name!r} isn't supported as GGUF (supported: "
            f"{', '.join(FAMILIES)}); pass the model's safetensors folder"
        )
    return FAMILIES[name]


def read_config(file: GGUFFile) -> Any:
    """Return the transformers configuration that a file describes.

    Its dtype is that of most of the file: float32, float16, or bfloat16 for bfloat16 and every
    quantisation (their float16 scales times small integers may not fit into float16).

    Raises:
        ModelError: the architecture, a tensor or a value isn't supported; names it.
    """
    family = read_family(file)
    _check_tensors(file)
    read = _Hyperparameters(file)
    hidden, heads = read.integer("embedding_length"), read.integer("attention.head_count")
    head_size = read.integer("attention.key_length", hidden // max(heads, 1))
    for key, only in (
        ("attention.value_length", head_size),
        ("rope.dimension_count", head_size),
        ("expert_count", 0),
        ("attention.sliding_window", 0),
    ):
        read.expect(key, only)
    fields = {
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "hidden_size": hidden,
        "intermediate_size": read.integer("feed_forward_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.integer("attention.head_count_kv", heads),
        "head_dim": head_size,
        "max_position_embeddings": read.integer("context_length"),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope_parameters(file, head_size),
        "tie_word_embeddings": _HEAD not in file.tensors,
        "dtype": _dtype(file),
        "architectures": [family.architecture],
        **read_special_ids(file),
    }
    if family.model_type == "llama":
        fields["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        fields["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    return _build(file, family.model_type, fields)


def transformers_name(name: str) -> str | None:
    """Return what transformers calls a tensor, or None for one that isn't a parameter.

    Raises:
        KeyError: there is no such tensor in the supported architectures.
    """
    if name == FACTORS:
        return None
    match = _BLOCK_NAME.fullmatch(name)
    if match is None:
        return _NAMES[name]
    return f"model.layers.{match[1]}.{_BLOCK_NAMES[match[2]]}.{match[3]}"


def to_half_split(name: str, values: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    """Reorder the rows of q and k from interleaved to half-split rope order.

    Args:
        name: as transformers names it; anything but q and k is returned as it is.
        values: [heads * head size, …].
        config: says how many heads there are.
    """
    match = _ROTATED.search(name)
    if match is None:
        return values
    heads = config.num_attention_heads if match[1] == "q" else config.num_key_value_heads
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _check_tensors(file: GGUFFile) -> None:
    for info in file.tensors.values():
        try:
            transformers_name(info.name)
        except KeyError as error:
            raise ModelError(
                f"{file.path}: tensor {info.name!r} belongs to no supported architecture; pass "
                "the model's safetensors folder"
            ) from error
    kinds = {info.type: info.name for info in file.tensors.values()}
    for kind, name in kinds.items():
        if not can_unpack(kind):
            raise ModelError(
                f"{file.path}: tensor {name!r} has the type {kind.name}, which can't be unpacked; "
                "pass a file of another quantisation"
            )
    if _EMBEDDING not in file.tensors:
        raise ModelError(f"{file.path}: holds no tensor {_EMBEDDING!r}; copy it again")


def _dtype(file: GGUFFile) -> str:
    sizes: Counter[GGMLQuantizationType] = Counter()
    for info in file.tensors.values():
        sizes[info.type] += info.size
    plain = {GGMLQuantizationType.F32: "float32", GGMLQuantizationType.F16: "float16"}
    return plain.get(sizes.most_common(1)[0][0], "bfloat16")


def _build(file: GGUFFile, model_type: str, fields: Mapping[str, Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[model_type](**fields)
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
        line = " ".join(str(error).split())
        raise ModelError(f"{file.path}: its metadata is inconsistent: {line}") from error


class _Hyperparameters:
    """The values under the architecture's own prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._prefix = f"{file.metadata['general.architecture']}."

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number; layers that differ (a list) aren't supported."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._bad(key, value, "one whole number")
        return value

    def number(self, key: str) -> float:
        """Return a number."""
        value = self._value(key, None)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(key, value, "a number")
        return float(value)

    def expect(self, key: str, only: int) -> None:
        """Refuse a value other than the one that the implementation stands for."""
        value = self._file.metadata.get(self._prefix + key, only)
        if value != only:
            raise self._bad(key, value, f"{only}")

    def _value(self, key: str, default: int | None) -> Any:
        value = self._file.metadata.get(self._prefix + key, default)
        if value is None:
            raise ModelError(f"{self._file.path}: its metadata lacks {self._prefix}{key}")
        return value

    def _bad(self, key: str, value: Any, allowed: str) -> ModelError:
        shown = f"{value!r:.60}"
        return ModelError(
            f"{self._file.path}: {self._prefix}{key}={shown} isn't supported, only {allowed}; "
            "pass the model's safetensors folder"
        )
