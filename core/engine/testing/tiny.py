"""A tiny random model folder: complete, two layers, byte tokens, made in a second."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, PreTrainedTokenizerFast

from engine.testing.reference import random_reference

_SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each byte, three special tokens, a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate((*_SPECIAL.values(), *letters))}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIAL)
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def write_tiny_model(folder: Path, *, seed: int = 0, max_model_len: int = 256) -> Path:
    """Write a model of the Llama family with random float32 weights.

    Args:
        folder: made if it doesn't exist.
        seed: of the weights; other weights continue a prompt otherwise.
        max_model_len: the context that its configuration names, in tokens.

    Returns:
        The folder, with config.json, model.safetensors, tokenizer and chat template.
    """
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_model_len,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    random_reference(config, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
