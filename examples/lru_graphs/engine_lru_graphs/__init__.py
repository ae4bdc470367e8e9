"""CUDA-graph mode `lru_graphs`: records what is met often, forgets what isn't met any more."""

from engine.hookspecs import hookimpl
from engine.strategies import GraphStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_cudagraph_mode() -> type[GraphStrategy]:
    """Register the strategy."""
    from engine_lru_graphs.strategy import LruGraphs

    return LruGraphs
