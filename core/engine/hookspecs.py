"""The hooks that a distribution implements: each registers classes of one kind.

pluggy carries the registration, an abstract base class the behaviour, a class attribute the
public name. A plugin module implements exactly the hook of the entry-point group that names it:

    # pyproject.toml
    [project.entry-points."engine.compile_modes"]
    mine = "my_package"

    # my_package/__init__.py
    from engine.hookspecs import hookimpl
    ENGINE_API_VERSION = 1

    @hookimpl
    def engine_register_compile_mode():
        from my_package.strategy import Mine
        return Mine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from engine.attention import AttentionPlugin
    from engine.families import PluginFamily
    from engine.grammars import GrammarPlugin
    from engine.models import ModelPlugin
    from engine.presets import Preset
    from engine.strategies import (
        Backend,
        CaptureSizePolicy,
        CompileStrategy,
        GraphStrategy,
        Pass,
    )
    from engine.tool_parsers import ToolParserPlugin
    from engine.weights import WeightsPlugin

PROJECT = "engine"
API_VERSION = 1
"""The version of the plugin contract; a plugin states the one it was written for."""
OLDEST_API_VERSION = 1
"""The oldest version that still runs (with a deprecation line when older than the current)."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class EngineSpec:
    """The hook specifications, one per kind of plugin."""

    @hookspec
    def engine_register_compile_mode(self) -> type[CompileStrategy]:
        """Return the compile strategy class (group `engine.compile_modes`)."""

    @hookspec
    def engine_register_cudagraph_mode(self) -> type[GraphStrategy]:
        """Return the graph strategy class (group `engine.cudagraph_modes`)."""

    @hookspec
    def engine_register_backend(self) -> type[Backend]:
        """Return the backend class (group `engine.backends`)."""

    @hookspec
    def engine_register_family(self) -> type[PluginFamily]:
        """Return a class that makes plugins of one kind by name (group `engine.families`)."""

    @hookspec
    def engine_register_attention(self) -> type[AttentionPlugin]:
        """Return the attention class (group `engine.attention`)."""

    @hookspec
    def engine_register_model(self) -> type[ModelPlugin]:
        """Return the model class (group `engine.models`)."""

    @hookspec
    def engine_register_weights(self) -> type[WeightsPlugin]:
        """Return the weight loader class (group `engine.weights`)."""

    @hookspec
    def engine_register_preset(self) -> type[Preset]:
        """Return the class that says what each optimisation level means (`engine.presets`)."""

    @hookspec
    def engine_register_pass(self) -> type[Pass]:
        """Return an FX pass class (group `engine.passes`)."""

    @hookspec
    def engine_register_capture_sizes(self) -> type[CaptureSizePolicy]:
        """Return the class that proposes capture sizes (group `engine.capture_sizes`)."""

    @hookspec
    def engine_register_grammar(self) -> type[GrammarPlugin]:
        """Return the class that constrains outputs to a grammar (group `engine.grammars`)."""

    @hookspec
    def engine_register_tool_parser(self) -> type[ToolParserPlugin]:
        """Return the class that reads a format of tool calls (group `engine.tool_parsers`)."""

    @hookspec
    def engine_register_break_ops(self) -> Sequence[str]:
        """Define operators with `engine.ops.break_op` and return their names (`engine.break_ops`).

        Called at each start of an engine: installing such a plugin is choosing it.
        """

    @hookspec
    def engine_register_observer(self) -> Any:
        """Return a callable that receives every `engine.events.Event` (`engine.observers`)."""

    @hookspec
    def engine_register_command(self) -> Any:
        """Return a click command to hang under `engine` (group `engine.commands`)."""


HOOK_OF_KIND: Mapping[str, str] = MappingProxyType(
    {
        "compile_modes": "engine_register_compile_mode",
        "cudagraph_modes": "engine_register_cudagraph_mode",
        "backends": "engine_register_backend",
        "families": "engine_register_family",
        "attention": "engine_register_attention",
        "models": "engine_register_model",
        "weights": "engine_register_weights",
        "presets": "engine_register_preset",
        "passes": "engine_register_pass",
        "capture_sizes": "engine_register_capture_sizes",
        "grammars": "engine_register_grammar",
        "tool_parsers": "engine_register_tool_parser",
        "break_ops": "engine_register_break_ops",
        "observers": "engine_register_observer",
        "commands": "engine_register_command",
    }
)
"""The hook that a module must implement, by the kind that its entry-point group names."""

LABEL_OF_KIND: Mapping[str, str] = MappingProxyType(
    {
        "compile_modes": "compilation mode",
        "cudagraph_modes": "CUDA-graph mode",
        "backends": "backend",
        "families": "plugin family",
        "attention": "attention implementation",
        "models": "model implementation",
        "weights": "weight loader",
        "presets": "preset",
        "passes": "FX pass",
        "capture_sizes": "capture-size policy",
        "grammars": "grammar library",
        "tool_parsers": "tool-call parser",
        "break_ops": "set of break ops",
        "observers": "observer",
        "commands": "command",
    }
)
"""What one plugin of a kind is called in messages."""

BASE_OF_KIND: Mapping[str, str] = MappingProxyType(
    {
        "compile_modes": "engine.strategies:CompileStrategy",
        "cudagraph_modes": "engine.strategies:GraphStrategy",
        "backends": "engine.strategies:Backend",
        "families": "engine.families:PluginFamily",
        "attention": "engine.attention:AttentionPlugin",
        "models": "engine.models:ModelPlugin",
        "weights": "engine.weights:WeightsPlugin",
        "presets": "engine.presets:Preset",
        "passes": "engine.strategies:Pass",
        "capture_sizes": "engine.strategies:CaptureSizePolicy",
        "grammars": "engine.grammars:GrammarPlugin",
        "tool_parsers": "engine.tool_parsers:ToolParserPlugin",
    }
)
"""The base class of what a hook returns, for the kinds that register classes."""
