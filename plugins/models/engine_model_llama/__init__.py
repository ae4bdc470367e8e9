"""Model `llama`: the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3), written once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.hookspecs import hookimpl

if TYPE_CHECKING:  # it imports torch
    from engine.models import ModelPlugin

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_model() -> type[ModelPlugin]:
    """Register the implementation."""
    from engine_model_llama.plugin import LlamaFamily

    return LlamaFamily
