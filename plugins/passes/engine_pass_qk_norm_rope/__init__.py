"""Pass `qk_norm_rope`: norms of queries and keys and their rotation, in one operator."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_qk_norm_rope.fusion import QkNormRope

    return QkNormRope
