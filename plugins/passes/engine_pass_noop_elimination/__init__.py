"""Pass `noop_elimination`: takes operators out of a graph that return what they are given."""

from engine.hookspecs import hookimpl
from engine.strategies import Pass

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> type[Pass]:
    """Register the pass."""
    from engine_pass_noop_elimination.noops import NoopElimination

    return NoopElimination
