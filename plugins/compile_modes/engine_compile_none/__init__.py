"""Compile mode `none`: the model's own Python, run as it is."""

from engine.hookspecs import hookimpl
from engine.strategies import CompileStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_compile_mode() -> type[CompileStrategy]:
    """Register the strategy."""
    from engine_compile_none.strategy import NoCompile

    return NoCompile
