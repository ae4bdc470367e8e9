"""Engine: LLM inference with pluggable compile modes, graph modes and backends.

The public names are loaded when they are first read, so that `import engine` is cheap and needs
no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.bundle import Bundle
    from engine.config import CompilationConfig, EngineConfig
    from engine.errors import (
        BrokenPluginError,
        ConfigError,
        DuplicatePluginError,
        EngineDeadError,
        EngineError,
        ModelError,
        PluginError,
        QueueFullError,
        RequestError,
        ResolutionError,
        UnknownPluginError,
    )
    from engine.names import BackendName, CompilationMode, CUDAGraphMode
    from engine.registry import Registry
    from engine.request import CompletionOutput, EngineStats, RequestOutput
    from engine.resolution import Record, Resolution
    from engine.runtime.async_engine import AsyncEngine, RequestStream
    from engine.runtime.bundling import compile_bundle
    from engine.runtime.llm import LLM
    from engine.runtime.loading import resolve_settings
    from engine.runtime.model_source import locate_model
    from engine.runtime.planning import plan_start
    from engine.sampling_params import SamplingParams
    from engine.settings import Settings
    from engine.structured_outputs import StructuredOutputs

_HOME = {
    "AsyncEngine": "engine.runtime.async_engine",
    "BackendName": "engine.names",
    "BrokenPluginError": "engine.errors",
    "Bundle": "engine.bundle",
    "CUDAGraphMode": "engine.names",
    "CompilationConfig": "engine.config",
    "CompilationMode": "engine.names",
    "CompletionOutput": "engine.request",
    "ConfigError": "engine.errors",
    "DuplicatePluginError": "engine.errors",
    "EngineConfig": "engine.config",
    "EngineDeadError": "engine.errors",
    "EngineError": "engine.errors",
    "EngineStats": "engine.request",
    "LLM": "engine.runtime.llm",
    "ModelError": "engine.errors",
    "PluginError": "engine.errors",
    "QueueFullError": "engine.errors",
    "Record": "engine.resolution",
    "Registry": "engine.registry",
    "RequestError": "engine.errors",
    "RequestOutput": "engine.request",
    "RequestStream": "engine.runtime.async_engine",
    "Resolution": "engine.resolution",
    "ResolutionError": "engine.errors",
    "SamplingParams": "engine.sampling_params",
    "Settings": "engine.settings",
    "StructuredOutputs": "engine.structured_outputs",
    "UnknownPluginError": "engine.errors",
    "compile_bundle": "engine.runtime.bundling",
    "locate_model": "engine.runtime.model_source",
    "plan_start": "engine.runtime.planning",
    "resolve_settings": "engine.runtime.loading",
}

__all__ = [
    "AsyncEngine",
    "BackendName",
    "BrokenPluginError",
    "Bundle",
    "CUDAGraphMode",
    "CompilationConfig",
    "CompilationMode",
    "CompletionOutput",
    "ConfigError",
    "DuplicatePluginError",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "EngineStats",
    "LLM",
    "ModelError",
    "PluginError",
    "QueueFullError",
    "Record",
    "Registry",
    "RequestError",
    "RequestOutput",
    "RequestStream",
    "Resolution",
    "ResolutionError",
    "SamplingParams",
    "Settings",
    "StructuredOutputs",
    "UnknownPluginError",
    "compile_bundle",
    "locate_model",
    "plan_start",
    "resolve_settings",
]


if not TYPE_CHECKING:  # a type checker must not take any name for granted

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'engine' has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
