"""The OpenAI-compatible HTTP server. Importing this loads no web framework and no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine_server.config import ServerConfig

if TYPE_CHECKING:
    from engine.events import Event
    from engine.resolution import Resolution
    from engine.settings import Settings

__all__ = ["ServerConfig", "run"]


def run(
    settings: Settings,
    server: ServerConfig,
    *,
    on_event: Callable[[Event], None] | None = None,
    on_ready: Callable[[Resolution], None] | None = None,
) -> int:
    """Serve a model until Ctrl-C or SIGTERM; must be called in the main thread.

    The address is taken first, so that a port in use is told before anything is loaded. While
    the engine starts, /health answers 200 and everything else 503.

    Args:
        settings: what was asked of the engine.
        server: what was asked of the server.
        on_event: receives the events of the start-up, from another thread.
        on_ready: receives the settings in force, just before the line that says where to connect.

    Returns:
        The exit code: 0 after Ctrl-C or SIGTERM, 1 when the engine died.

    Raises:
        EngineError: the address can't be had, or the engine couldn't start.
    """
    from engine_server import listener

    server.check_files()
    socket = listener.listen(server)
    try:
        from engine_server.serving import serve

        return serve(
            settings, server, socket, stream=sys.stderr, on_event=on_event, on_ready=on_ready
        )
    finally:
        listener.close(socket, server)
