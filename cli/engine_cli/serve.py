"""`engine serve`: the OpenAI-compatible server."""

from __future__ import annotations

from typing import Any

import click

from engine.config import EngineConfig
from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.state import state_of
from engine_server.config import ServerConfig


@settings_command("serve", models=(EngineConfig, ServerConfig), params=[verbose_option()])
@click.pass_context
def serve(context: click.Context, /, sources: Sources, verbose: bool) -> Any:
    """Serve MODEL over an OpenAI-compatible HTTP API.

    Without MODEL the demo model is served.
    """
    state = state_of(context)
    settings = sources.settings(state)
    server, _ = sources.build(ServerConfig)
    state.tell_notes()
    import engine_server

    return engine_server.run(settings, server)
