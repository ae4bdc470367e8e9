"""The levels, from starting fast to running fast."""

from __future__ import annotations

from types import MappingProxyType

from engine.presets import Level, Preset

_ATTENTION = ("triton", "sdpa")
_BACKENDS = ("inductor", "eager")


class DefaultPreset(Preset):
    """The levels of the engine; 2 is in force when none is given."""

    NAME = "default"
    SUMMARY = "level 0 starts at once, 1 compiles, 2 also records graphs (default), 3 as 2"
    LEVELS = MappingProxyType(
        {
            0: Level(
                "nothing compiled, nothing recorded: starts at once",
                compile_modes=("none",),
                cudagraph_modes=("none",),
                backends=_BACKENDS,
                attention=_ATTENTION,
            ),
            1: Level(
                "compiled in pieces; pieces recorded",
                compile_modes=("vllm_compile", "none"),
                cudagraph_modes=("piecewise", "none"),
                backends=_BACKENDS,
                attention=_ATTENTION,
            ),
            2: Level(
                "compiled in pieces; whole graphs for decode, pieces for the rest",
                compile_modes=("vllm_compile", "none"),
                cudagraph_modes=("full_and_piecewise", "piecewise", "none"),
                backends=_BACKENDS,
                attention=_ATTENTION,
            ),
            3: Level(
                "the same as 2 today; may spend more start-up time for speed later",
                compile_modes=("vllm_compile", "none"),
                cudagraph_modes=("full_and_piecewise", "piecewise", "none"),
                backends=_BACKENDS,
                attention=_ATTENTION,
            ),
        }
    )
