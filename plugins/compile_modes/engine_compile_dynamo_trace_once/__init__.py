"""Compile mode `dynamo_trace_once`: traced once as a whole, guards dropped."""

from engine.hookspecs import hookimpl
from engine.strategies import CompileStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_compile_mode() -> type[CompileStrategy]:
    """Register the strategy."""
    from engine_compile_dynamo_trace_once.strategy import TraceOnce

    return TraceOnce
