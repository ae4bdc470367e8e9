"""Pass `horizontal_fusion`: linear layers of the same input as one product."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_horizontal_fusion.fusion import HorizontalFusion

    return HorizontalFusion
