"""Pass `fused_gelu`: turns `gelu(gate) * up` into one operator."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_fused_gelu.passes import FusedGelu

    return FusedGelu
