"""Compile mode `regional_compile`: compiles one transformer block and reuses it for all."""

from engine.hookspecs import hookimpl
from engine.strategies import CompileStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_compile_mode() -> type[CompileStrategy]:
    """Register the strategy."""
    from engine_regional_compile.strategy import RegionalCompile

    return RegionalCompile
