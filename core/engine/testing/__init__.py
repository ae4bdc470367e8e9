"""What tests of plugins are built from; nothing that serves imports it.

A plugin's author writes a class with the plugin's name and gets every check of its kind:

    from engine.testing import GraphStrategyConformance

    class TestMine(GraphStrategyConformance):
        strategy = "mine"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.testing.conformance.attention import AttentionConformance
    from engine.testing.conformance.backend import BackendConformance
    from engine.testing.conformance.compile import CompileStrategyConformance
    from engine.testing.conformance.declared import PluginConformance
    from engine.testing.conformance.fx_pass import PassConformance
    from engine.testing.conformance.graphs import GraphStrategyConformance
    from engine.testing.conformance.suite import ContractError, run_checks

__all__ = [
    "AttentionConformance",
    "BackendConformance",
    "CompileStrategyConformance",
    "ContractError",
    "GraphStrategyConformance",
    "PassConformance",
    "PluginConformance",
    "SUITES",
    "run_checks",
]

SUITES = {
    "attention": "AttentionConformance",
    "backends": "BackendConformance",
    "compile_modes": "CompileStrategyConformance",
    "cudagraph_modes": "GraphStrategyConformance",
    "passes": "PassConformance",
}
"""The suite of each kind that has one; other kinds have what is asked of every plugin."""

_PLACES = {
    "AttentionConformance": "attention",
    "BackendConformance": "backend",
    "CompileStrategyConformance": "compile",
    "ContractError": "suite",
    "GraphStrategyConformance": "graphs",
    "PassConformance": "fx_pass",
    "PluginConformance": "declared",
    "run_checks": "suite",
}


def __getattr__(name: str) -> Any:
    # Deferred: pytest imports this package at each start, and most runs test no plugin.
    if (place := _PLACES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.conformance.{place}"), name)
