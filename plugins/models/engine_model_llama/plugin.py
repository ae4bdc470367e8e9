"""The plugin: which configurations are of the family, and how a model is built from one."""

from __future__ import annotations

from typing import Any

import torch

from engine.models import CausalLM, ModelPlugin
from engine_model_llama.architecture import FAMILY, architecture_name, read_architecture
from engine_model_llama.model import Llama


class LlamaFamily(ModelPlugin):
    """Decoders of Llama's shape: RMSNorm, rotary positions, grouped heads, gated MLP."""

    NAME = "llama"
    SUMMARY = "Llama 2/3, SmolLM2, Mistral, Qwen2, Qwen3, with fused projections"
    PRIORITY = 10

    @classmethod
    def handles(cls, config: Any) -> bool:
        """Say whether the configuration's architecture is of the family."""
        return architecture_name(config) in FAMILY

    def build(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> CausalLM:
        """Build the module with uninitialised parameters.

        Raises:
            ModelError: the configuration asks for something the family doesn't have; names it.
        """
        return Llama(read_architecture(config), dtype=dtype, device=device)
