"""Weights format `dummy`: random weights for a real configuration."""

from engine.hookspecs import hookimpl
from engine.weights import WeightsPlugin

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_weights() -> type[WeightsPlugin]:
    """Register the loader."""
    from engine_weights_dummy.loader import DummyWeights

    return DummyWeights
