"""Compile mode `vllm_compile`: traced once, split at the break ops, equal pieces compiled once."""

from engine.hookspecs import hookimpl
from engine.strategies import CompileStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_compile_mode() -> type[CompileStrategy]:
    """Register the strategy."""
    from engine_compile_vllm_compile.strategy import PiecewiseCompile

    return PiecewiseCompile
