"""Runs the server on the real engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import IO

import uvloop

from engine import AsyncEngine, Registry
from engine.events import Event
from engine.resolution import Resolution
from engine.settings import Settings
from engine_server import listener as listening
from engine_server.config import ServerConfig
from engine_server.engine_api import Engine
from engine_server.lifecycle import Lifecycle
from engine_server.logs import set_up_logging
from engine_server.tools import choose_parser


def serve(
    settings: Settings,
    server: ServerConfig,
    listener: socket.socket,
    *,
    stream: IO[str],
    on_event: Callable[[Event], None] | None,
    on_ready: Callable[[Resolution], None] | None,
) -> int:
    """Serve until told to stop; see `engine_server.run`.

    Args:
        settings: what was asked of the engine.
        server: what was asked of the server.
        listener: a listening socket.
        stream: where to say that requests are taken.
        on_event: receives the events of the start-up.
        on_ready: receives the settings in force.
    """
    set_up_logging(server)
    if server.tool_call_parser != "auto":
        # Whatever is wrong with it is told before anything is loaded.
        choose_parser(server.tool_call_parser, None, Registry())

    async def start(*, on_event: Callable[[Event], None]) -> Engine:
        return await AsyncEngine.start(settings, on_event=on_event)

    def announce(resolution: Resolution, *, seconds: float, phases: dict[str, float]) -> None:
        if on_ready is not None:
            on_ready(resolution)
        parts = ", ".join(f"{name} {spent:.1f}" for name, spent in phases.items())
        address = listening.url(listener, server)
        stream.write(f"ready {address} in {seconds:.1f} s{f' ({parts})' if parts else ''}\n")
        stream.flush()

    async def main() -> int:
        lifecycle = Lifecycle(
            server, listener, start_engine=start, on_event=on_event, announce=announce
        )
        return await lifecycle.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
