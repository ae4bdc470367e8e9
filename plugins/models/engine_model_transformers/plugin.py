"""The plugin: which configurations transformers has a causal language model for."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine.models import CausalLM, ModelPlugin
from engine_model_transformers.model import TransformersCausalLM


class TransformersFallback(ModelPlugin):
    """The general fallback: transformers' own modules over the engine's cache and scheduler.

    Slower than an implementation written for the engine; what can't be served correctly is
    refused with the reason.
    """

    NAME = "transformers"
    SUMMARY = "any causal language model of transformers, over the engine's KV cache"
    PRIORITY = -10

    @classmethod
    def handles(cls, config: Any) -> bool:
        """Say whether transformers has a causal language model for the configuration."""
        known = getattr(config, "model_type", None) in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        return isinstance(config, PretrainedConfig) and known

    def build(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> CausalLM:
        """Build transformers' module with uninitialised parameters.

        Raises:
            ModelError: the model can't be served over flat tokens and a paged cache; says why.
        """
        return TransformersCausalLM(config, dtype=dtype, device=device)
