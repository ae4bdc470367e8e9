"""Pass `packed_linear`: projections on a CPU with weights that are packed once."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_packed_linear.packing import PackedLinear

    return PackedLinear
