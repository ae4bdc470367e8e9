"""Makes rotary frequencies independent of the batch.

Transformers recomputes frequencies in the forward pass when the longest position of the batch
asks for it. In a batch of many requests that would let one request change another's result, and
it reads a value back from the device at every step.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import ModelError

logger = logging.getLogger(__name__)


def fix_frequencies(body: nn.Module, config: PretrainedConfig) -> None:
    """Settle the frequencies of every rotary module for the configured context.

    `dynamic` frequencies change beyond `max_position_embeddings` only, where nothing is served.
    `longrope` has a set for sequences within the original context and one for longer ones; the
    configured context decides.

    Raises:
        ModelError: the frequencies differ by layer type and by length.
    """
    module: Any
    for module in body.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict):
            if "longrope" in kind.values():
                raise ModelError(
                    "config.json: rope_parameters has longrope for one type of layers, which "
                    "isn't supported beside others."
                )
            module.rope_type = dict.fromkeys(kind, "default")
        elif isinstance(kind, str) and kind != "default":
            if kind == "longrope":
                _settle_longrope(module, config)
            module.rope_type = "default"


def _settle_longrope(module: nn.Module, config: Any) -> None:
    original = config.rope_parameters["original_max_position_embeddings"]
    if config.max_position_embeddings <= original:
        return
    logger.warning(
        "longrope: the factors for long contexts are used for every request, because "
        "max_position_embeddings (%d) is over the original context (%d)",
        config.max_position_embeddings,
        original,
    )
    inv_freq: Any = module.inv_freq
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](
        config, torch.device("cpu"), seq_len=config.max_position_embeddings
    )
    inv_freq.copy_(frequencies)
