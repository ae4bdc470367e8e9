"""Pass `silu_mul`: SiLU of the gate times the rest, in one operator."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_silu_mul.fusion import SiluMul

    return SiluMul
