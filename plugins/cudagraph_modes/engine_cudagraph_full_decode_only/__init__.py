"""Graph mode `full_decode_only`: whole decode steps are recorded, the rest is launched."""

from engine.hookspecs import hookimpl
from engine.strategies import GraphStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_cudagraph_mode() -> type[GraphStrategy]:
    """Register the strategy."""
    from engine_cudagraph_full_decode_only.strategy import FullDecodeOnly

    return FullDecodeOnly
