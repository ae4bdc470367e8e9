"""`engine serve`: the OpenAI-compatible server."""

from __future__ import annotations

import sys

import click

from engine.config import EngineConfig
from engine_cli.options import verbose_option
from engine_cli.settings_command import settings_command
from engine_cli.sources import Sources
from engine_cli.startup import StartupProgress
from engine_cli.state import state_of
from engine_server.config import ServerConfig


@settings_command(
    "serve",
    examples=(
        "engine serve",
        "engine serve ./model --port 8080 --api-key secret",
        "engine serve ./model --compilation-mode vllm_compile --cudagraph-mode full_and_piecewise",
        "engine serve --help=cudagraph",
    ),
    models=(EngineConfig, ServerConfig),
    params=[verbose_option()],
)
@click.pass_context
def serve(context: click.Context, /, sources: Sources, verbose: bool) -> int:
    """Serve MODEL over an OpenAI-compatible HTTP API.

    Without MODEL the demo model is served.
    """
    state = state_of(context)
    settings = sources.settings(state)
    server, _ = sources.build(ServerConfig)
    state.tell_notes()
    from engine_server import run

    with StartupProgress(sys.stderr, verbose=verbose) as progress:
        return run(settings, server, on_event=progress, on_ready=lambda _: progress.stop())
