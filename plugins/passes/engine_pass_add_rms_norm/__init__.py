"""Pass `add_rms_norm`: adding the residual and the norm after it, in one operator."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_add_rms_norm.fusion import AddRmsNorm

    return AddRmsNorm
