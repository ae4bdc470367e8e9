"""Graph mode `piecewise`: what lies between the break ops is recorded."""

from engine.hookspecs import hookimpl
from engine.strategies import GraphStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_cudagraph_mode() -> type[GraphStrategy]:
    """Register the strategy."""
    from engine_cudagraph_piecewise.strategy import Piecewise

    return Piecewise
