"""Pass `small_batch_linear`: projections of few tokens at the speed of reading their weights."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_small_batch_linear.fusion import SmallBatchLinear

    return SmallBatchLinear
