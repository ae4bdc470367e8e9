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
        """Return the compile strategy class (group `engine.compile_modes`).

        Called when it is chosen for `compilation_config.mode`, or looked at by `engine plugins`.
        """

    @hookspec
    def engine_register_cudagraph_mode(self) -> type[GraphStrategy]:
        """Return the graph strategy class (group `engine.cudagraph_modes`).

        Called when it is chosen for `compilation_config.cudagraph_mode`, or asked for by a mode
        that composes (`GraphJob.make`).
        """

    @hookspec
    def engine_register_backend(self) -> type[Backend]:
        """Return the backend class (group `engine.backends`).

        Called when it is chosen for `compilation_config.backend`.
        """

    @hookspec
    def engine_register_family(self) -> type[PluginFamily]:
        """Return a class that makes plugins of one kind by name (group `engine.families`).

        Called when a name of its kind is nobody's own, to ask whether the family has it.
        """

    @hookspec
    def engine_register_attention(self) -> type[AttentionPlugin]:
        """Return the attention class (group `engine.attention`).

        Called when it is chosen for `attention`.
        """

    @hookspec
    def engine_register_model(self) -> type[ModelPlugin]:
        """Return the model class (group `engine.models`).

        Called for every installed one, unless `model_impl` names one: the first that handles the
        model's configuration, by priority, builds it.
        """

    @hookspec
    def engine_register_weights(self) -> type[WeightsPlugin]:
        """Return the weight loader class (group `engine.weights`).

        Called for every installed one, unless `load_format` names one: the first that handles the
        path reads it.
        """

    @hookspec
    def engine_register_preset(self) -> type[Preset]:
        """Return the class that says what each optimisation level means (`engine.presets`).

        Called when it is chosen for `preset`, before anything else is resolved.
        """

    @hookspec
    def engine_register_pass(self) -> type[Pass]:
        """Return an FX pass class (group `engine.passes`).

        Called at each start in a mode that reads `passes`, for every installed one, whether on or
        off: all take part in the order.
        """

    @hookspec
    def engine_register_capture_sizes(self) -> type[CaptureSizePolicy]:
        """Return the class that proposes capture sizes (group `engine.capture_sizes`).

        Called when it is chosen for `capture_size_policy` and the user names no sizes.
        """

    @hookspec
    def engine_register_grammar(self) -> type[GrammarPlugin]:
        """Return the class that constrains outputs to a grammar (group `engine.grammars`).

        Called when it is chosen for `grammar`, or first of those that are usable.
        """

    @hookspec
    def engine_register_tool_parser(self) -> type[ToolParserPlugin]:
        """Return the class that reads a format of tool calls (group `engine.tool_parsers`).

        Called when it is chosen for `tool_call_parser`, or to ask which of them reads a model's
        format.
        """

    @hookspec
    def engine_register_break_ops(self) -> Sequence[str]:
        """Define operators with `engine.ops.break_op` and return their names (`engine.break_ops`).

        Called at each start of an engine: installing such a plugin is choosing it.
        """

    @hookspec
    def engine_register_observer(self) -> Any:
        """Return a callable that receives every `engine.events.Event` (`engine.observers`).

        Called at each start that names it in `observers`; the callable may be called from the
        engine's loop only and must not block it. One that raises is logged and dropped.
        """

    @hookspec
    def engine_register_command(self) -> Any:
        """Return a click command to hang under `engine` (group `engine.commands`).

        Called when the command, or its help, is asked for.
        """


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
