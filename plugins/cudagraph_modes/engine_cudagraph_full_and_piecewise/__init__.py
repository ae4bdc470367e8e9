"""Graph mode `full_and_piecewise`: whole graphs for decode, pieces for the rest."""

from engine.hookspecs import hookimpl
from engine.strategies import GraphStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_cudagraph_mode() -> type[GraphStrategy]:
    """Register the strategy."""
    from engine_cudagraph_full_and_piecewise.strategy import FullAndPiecewise

    return FullAndPiecewise
