"""Weights format `gguf`: one file with weights, configuration and tokenizer."""

from engine.hookspecs import hookimpl
from engine.weights import WeightsPlugin

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_weights() -> type[WeightsPlugin]:
    """Register the loader."""
    from engine_weights_gguf.loader import GGUFWeights

    return GGUFWeights
