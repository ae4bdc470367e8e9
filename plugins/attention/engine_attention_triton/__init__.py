"""Attention `triton`: paged attention in Triton, recordable for every batch."""

from engine.attention import AttentionPlugin
from engine.hookspecs import hookimpl

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_attention() -> type[AttentionPlugin]:
    """Register the implementation."""
    from engine_attention_triton.attention import TritonAttention

    return TritonAttention
