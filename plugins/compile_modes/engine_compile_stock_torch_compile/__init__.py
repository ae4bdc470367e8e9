"""Compile mode `stock_torch_compile`: torch.compile as PyTorch ships it."""

from engine.hookspecs import hookimpl
from engine.strategies import CompileStrategy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_compile_mode() -> type[CompileStrategy]:
    """Register the strategy."""
    from engine_compile_stock_torch_compile.strategy import StockTorchCompile

    return StockTorchCompile
