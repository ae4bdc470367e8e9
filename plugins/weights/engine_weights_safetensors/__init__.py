"""Weights format `safetensors`: a model folder as transformers writes it."""

from engine.hookspecs import hookimpl
from engine.weights import WeightsPlugin

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_weights() -> type[WeightsPlugin]:
    """Register the loader."""
    from engine_weights_safetensors.loader import SafetensorsWeights

    return SafetensorsWeights
