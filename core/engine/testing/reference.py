"""Tiny random models, run by transformers itself: what an implementation is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from engine.models import CausalLM, ModelPlugin


def random_reference(
    config: PretrainedConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Return transformers' model of a configuration with random weights, on the CPU.

    The weights are wide enough for greedy continuations to differ from prompt to prompt, and no
    tensor (bias, norm) is left at the constant that would hide an error.
    """
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm_weight = parameter.ndim == 1 and not name.endswith("bias")
            parameter.copy_(1 + 0.2 * noise if is_norm_weight else 0.3 * noise)
    model.eval()
    return model  # type: ignore[no-any-return]  # transformers' factory is untyped


def reference_tokens(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """Return the `count` tokens that transformers' greedy `generate` continues a prompt with."""
    ids = torch.tensor([list(prompt)])
    # A configuration of our own: the model's may name an end token, which would end it early.
    greedy = GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
    model.generation_config.eos_token_id = None
    made: Any = model.generate(  # type: ignore[operator]  # transformers types it as a tensor
        ids, attention_mask=torch.ones_like(ids), generation_config=greedy
    )
    return [int(token) for token in made[0, len(prompt) :]]


def reference_logits(model: PreTrainedModel, prompt: Sequence[int]) -> torch.Tensor:
    """Return transformers' logits [n, V] of a prompt of n tokens."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([list(prompt)])).logits[0]
    return logits


def build_like(
    plugin: ModelPlugin,
    reference: PreTrainedModel,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> CausalLM:
    """Build the plugin's model of the reference's configuration, with the reference's weights."""
    model = plugin.build(reference.config, dtype=dtype, device=torch.device(device))
    model.load_weights(reference.state_dict().items())
    return model.eval()
