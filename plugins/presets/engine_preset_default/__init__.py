"""Preset `default`: what `-O0` to `-O3` mean unless a vendor's preset is chosen."""

from engine.hookspecs import hookimpl
from engine.presets import Preset

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_preset() -> type[Preset]:
    """Register the preset."""
    from engine_preset_default.preset import DefaultPreset

    return DefaultPreset
