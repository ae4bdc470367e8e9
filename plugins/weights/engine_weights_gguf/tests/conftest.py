"""Writes tiny GGUF files as converters write them, with the gguf package's own writer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray
from transformers import PreTrainedModel

Kinds = Mapping[str, GGMLQuantizationType]
F32 = GGMLQuantizationType.F32

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass
class Draft:
    """What goes into a file; a test changes it before it is written.

    Attributes:
        architecture: GGUF's name of it.
        values: metadata; keys that start with a dot are under the architecture's name.
        tensors: values and types by GGUF name.
    """

    architecture: str
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[NDArray[np.float32], GGMLQuantizationType]] = field(
        default_factory=dict
    )

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        writer = GGUFWriter(path, self.architecture)
        for key, value in self.values.items():
            _add(writer, f"{self.architecture}{key}" if key.startswith(".") else key, value)
        for name, (array, kind) in self.tensors.items():
            writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def draft_of(model: PreTrainedModel, kind: GGMLQuantizationType = F32) -> Draft:
    """Convert a model as llama.cpp's converter does; matrices become `kind`, the rest float32."""
    config: Any = model.config
    draft = Draft(
        config.model_type,
        {
            ".block_count": config.num_hidden_layers,
            ".context_length": config.max_position_embeddings,
            ".embedding_length": config.hidden_size,
            ".feed_forward_length": config.intermediate_size,
            ".attention.head_count": config.num_attention_heads,
            ".attention.head_count_kv": config.num_key_value_heads,
            ".attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
            ".rope.freq_base": float(config.rope_parameters["rope_theta"]),
        },
    )
    head_size = getattr(config, "head_dim", None)
    if head_size and head_size * config.num_attention_heads != config.hidden_size:
        draft.values[".attention.key_length"] = head_size
        draft.values[".attention.value_length"] = head_size
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        if config.model_type == "llama":
            array = interleaved(name, array, config)
        draft.tensors[gguf_name(name)] = (array, kind if array.ndim == 2 else F32)
    return draft


def gguf_name(name: str) -> str:
    """Return GGUF's name of a transformers tensor."""
    stem, _, ending = name.rpartition(".")
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    block = f"blk.{match[1]}." if match else ""
    return f"{block}{_NAMES[match[2] if match else stem]}.{ending}"


def interleaved(name: str, array: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    """Put the rows of q and k into interleaved order, row by row, as the format defines it.

    In a head of size D, row i of the first half is row 2i, row i of the second half is 2i + 1.
    """
    if not re.search(r"self_attn\.[qk]_proj", name):
        return array
    heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
    size = array.shape[0] // heads
    result = np.empty_like(array)
    for head in range(heads):
        for i in range(size // 2):
            result[head * size + 2 * i] = array[head * size + i]
            result[head * size + 2 * i + 1] = array[head * size + size // 2 + i]
    return result


def add_vocabulary(
    draft: Draft,
    tokens: Sequence[str],
    merges: Iterable[str],
    *,
    pre: str,
    types: Mapping[str, TokenType],
    **ids: int,
) -> None:
    """Add a byte-level BPE vocabulary; `ids` are special ids such as `bos_token_id`."""
    draft.values["tokenizer.ggml.model"] = "gpt2"
    draft.values["tokenizer.ggml.pre"] = pre
    draft.values["tokenizer.ggml.tokens"] = list(tokens)
    draft.values["tokenizer.ggml.token_type"] = [
        int(types.get(token, TokenType.NORMAL)) for token in tokens
    ]
    if listed := list(merges):
        draft.values["tokenizer.ggml.merges"] = listed
    draft.values.update({f"tokenizer.ggml.{name}": token for name, token in ids.items()})


@pytest.fixture(scope="session")
def demo() -> Path:
    """Give the demo model's file."""
    from engine.runtime.model_source import locate_model

    return locate_model(None)
