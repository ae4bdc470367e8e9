"""Attention `sdpa`: pure torch over the paged cache; runs anywhere, and is the reference."""

from engine.attention import AttentionPlugin
from engine.hookspecs import hookimpl

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_attention() -> type[AttentionPlugin]:
    """Register the implementation."""
    from engine_attention_sdpa.attention import SdpaAttention

    return SdpaAttention
