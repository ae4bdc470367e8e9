"""Whether everything that a compile mode makes with a backend can come from the artifact store."""

from __future__ import annotations

from engine.plugin import Plugin, Refusal, StartupCost

SETTING = "require_cache"


def cannot_be_kept(mode: type[Plugin], backend: type[Plugin]) -> Refusal | None:
    """Say why a pair can't be started from artifacts alone; None if it can.

    Args:
        mode: a compile strategy; one that reads `require_cache` says so in its `SETTINGS`.
        backend: what it hands graphs to.
    """
    calls_backend = getattr(mode, "USES_BACKEND", True)
    if SETTING not in mode.SETTINGS:
        if not calls_backend and mode.STARTUP_COST is StartupCost.NONE:
            return None  # nothing is compiled at all
        return Refusal(
            f"compile mode {mode.NAME} doesn't take what it compiles from the artifact store",
            "choose a compile mode that does (those whose `engine plugins show` names "
            f"{SETTING} among the settings they read)",
        )
    if calls_backend and not getattr(backend, "CACHEABLE", False):
        return Refusal(
            f"backend {backend.NAME} keeps no artifacts",
            "choose a backend that does (`engine plugins show` says cacheable)",
        )
    return None
