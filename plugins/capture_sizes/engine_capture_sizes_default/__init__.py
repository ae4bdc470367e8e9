"""Capture sizes `default`: dense where decode batches are, sparser above."""

from engine.hookspecs import hookimpl
from engine.strategies import CaptureSizePolicy

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_capture_sizes() -> type[CaptureSizePolicy]:
    """Register the policy."""
    from engine_capture_sizes_default.policy import DefaultSizes

    return DefaultSizes
