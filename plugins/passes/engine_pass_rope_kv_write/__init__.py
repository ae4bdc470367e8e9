"""Pass `rope_kv_write`: rotation inside the attention operator, where keys are written."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_rope_kv_write.fusion import RopeKvWrite

    return RopeKvWrite
