"""Graph mode `full`: whole steps are recorded, whatever the batch."""

from engine.hookspecs import hookimpl
from engine.strategies import GraphStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_cudagraph_mode() -> type[GraphStrategy]:
    """Register the strategy."""
    from engine_cudagraph_full.strategy import Full

    return Full
