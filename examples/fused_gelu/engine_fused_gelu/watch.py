"""Pass `gelu_watch`: tells of large activations after each fused operator."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_fused_gelu.passes import GeluWatch

    return GeluWatch
