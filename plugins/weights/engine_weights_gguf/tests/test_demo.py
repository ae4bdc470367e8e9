"""The demo model's file: what it says, what its tensors are, and that the model talks sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from engine.events import EventBus
from engine.registry import Registry
from engine.testing.paged import PagedRunner
from engine_weights_gguf.loader import GGUFWeights
from engine_weights_gguf.reader import GGUFFile

from .conftest import gguf_name, interleaved


@pytest.fixture(scope="module")
def loader() -> GGUFWeights:
    return GGUFWeights()


@pytest.fixture(scope="module")
def config(loader: GGUFWeights, demo: Path) -> Any:
    return loader.config(demo)


def test_the_configuration_is_that_of_the_model(config: Any) -> None:
    expected = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": [0, 2],
        "pad_token_id": 2,
    }
    assert {key: getattr(config, key) for key in expected} == expected
    assert str(config.dtype).removeprefix("torch.") == "bfloat16"


def test_every_tensor_is_what_the_package_unpacks(
    loader: GGUFWeights, demo: Path, config: Any
) -> None:
    file = GGUFFile(demo)  # its bytes are those of the package's reader; see test_reader.py
    packed = dict(file.tensors)
    count = 0
    for name, tensor in loader.tensors(demo, config):
        info = packed.pop(gguf_name(name))
        assert tensor.dtype == torch.float32
        assert np.array_equal(
            interleaved(name, tensor.numpy(), config),
            dequantize(file.raw(info), info.type).reshape(info.shape),
        ), name
        count += 1
    assert not packed
    assert count == loader.num_tensors(demo) == 272


def test_the_loaded_model_knows_the_capital_of_france(
    loader: GGUFWeights, demo: Path, config: Any
) -> None:
    registry = Registry()
    plugin, attention = registry.load("models", "llama"), registry.load("attention", "sdpa")
    model = plugin().build(config, dtype=torch.float32, device=torch.device("cpu"))
    loader.load(model, demo, config, EventBus(), seed=0)
    tokenizer = loader.tokenizer(demo)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    runner = PagedRunner(model.eval(), attention())
    answer = runner.greedy(tokenizer(prompt).input_ids, 8)
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    assert answer[-1] in loader.end_token_ids(demo, config, tokenizer)
