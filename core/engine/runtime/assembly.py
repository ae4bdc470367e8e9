"""Makes one instance of each plugin in force, with its options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.artifacts import artifacts_folder
from engine.attention import AttentionPlugin
from engine.bundle import check_bundle, read_bundle
from engine.config import EngineConfig
from engine.errors import PluginError
from engine.events import EventBus
from engine.ops import known_break_ops
from engine.passes import load_passes
from engine.registry import Registry
from engine.runtime.key_factors import common_factors
from engine.strategies import Backend, CompileStrategy, GraphStrategy, Pass

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Strategies:
    """The plugins of one engine.

    Attributes:
        compiler, graphs, backend, attention: one instance each, not shared with other engines.
        make_graphs: builds another graph strategy by name, for those that compose.
        passes: the FX passes that are on, in order; none where the compile mode runs none.
    """

    compiler: CompileStrategy
    graphs: GraphStrategy
    backend: Backend
    attention: AttentionPlugin
    make_graphs: Callable[[str], GraphStrategy]
    passes: tuple[Pass, ...]


def assemble(config: EngineConfig, registry: Registry) -> Strategies:
    """Make the plugins that effective settings name.

    Raises:
        PluginError: one of them can't be loaded.
        ConfigError: a switch of `passes` names no pass, or only kept artifacts may be used and
            they were made for something else.
    """
    chosen = config.compilation_config
    if chosen.require_cache:
        bundle = read_bundle(artifacts_folder(chosen.cache_dir).parent)
        if bundle is not None:
            check_bundle(bundle, common_factors(config))
    load_break_ops(registry)

    def make(kind: str, name: str | None, options: dict[str, Any]) -> Any:
        plugin = registry.load(kind, str(name))
        return plugin(plugin.OPTIONS(**options))

    compiler: CompileStrategy = make("compile_modes", chosen.mode, chosen.mode_options)
    graphs: GraphStrategy = make("cudagraph_modes", chosen.cudagraph_mode, chosen.cudagraph_options)
    passes: tuple[Pass, ...] = ()
    if "passes" in compiler.SETTINGS:
        # On a GPU, operators of passes are worth their launches only where a graph launches them.
        worth = graphs.NEEDS_GRAPHS or config.device == "cpu"
        passes = load_passes(registry, chosen.passes, config.device if worth else "")
    return Strategies(
        compiler=compiler,
        passes=passes,
        graphs=graphs,
        backend=make("backends", chosen.backend, chosen.backend_options),
        attention=make("attention", config.attention, {}),
        make_graphs=lambda name: make("cudagraph_modes", name, {}),
    )


def load_break_ops(registry: Registry) -> None:
    """Let every installed set of break ops define its operators; installing it is choosing it.

    One that can't be loaded is left out with a line, since nobody asked for it by name.
    """
    for name in registry.names("break_ops"):
        try:
            defined = registry.load("break_ops", name)
        except PluginError as error:
            logger.warning("left out: %s", error)
            continue
        if foreign := sorted({*defined} - {*known_break_ops()}):
            logger.warning(
                "set of break ops %r names %s, which isn't defined with engine.ops.break_op; "
                "graphs won't break there",
                name,
                ", ".join(foreign),
            )


def attach_observers(config: EngineConfig, registry: Registry, events: EventBus) -> None:
    """Subscribe the observers that the user named.

    Raises:
        PluginError: one of them can't be loaded.
    """
    for name in config.observers:
        events.subscribe(registry.load("observers", name))
