"""How the server is: /health, /ready, /version, /metrics, /v1/engine."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import msgspec
from fastapi import APIRouter
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import EngineDeadError
from engine.request import EngineStats
from engine_server.engine_api import Engine
from engine_server.errors import ApiError
from engine_server.openapi import describe
from engine_server.responses import EngineAnswer
from engine_server.state import ServerState

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""What needs no API key: orchestrators and Prometheus ask for it."""

_STATS_SECONDS = 2.0
"""How long an engine in a long step may keep a request for its counters waiting."""


def status_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    async def health() -> Response:
        """Tell whether the server lives; it does while it starts and while it ends."""
        problem = None if state.alive else state.problem()
        return Response() if problem is None else problem.response()

    async def ready() -> Response:
        """Tell whether requests are taken; if not, where the start-up is."""
        if (problem := state.problem()) is None:
            return _json({"status": "ready"})
        phase = state.phase
        return problem.response(phase=phase.name, done=phase.done, of=phase.total)

    for path, probe in (("/health", health), ("/ready", ready)):
        router.add_api_route(path, probe, response_model=None)
        router.add_api_route(
            path, probe, response_model=None, methods=["HEAD"], include_in_schema=False
        )

    @router.get("/version", response_model=None)
    async def version() -> Response:
        """Tell the version."""
        return _json({"version": state.version})

    @router.get("/metrics", response_model=None)
    async def metrics(request: Request) -> Response:
        """Return all counters for Prometheus."""
        if (serving := state.started) is not None:
            state.metrics.stats = await _stats(serving.engine) or state.metrics.stats
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(state.metrics.registry), headers={"Content-Type": content_type})

    @router.get("/v1/engine", **describe(None, EngineAnswer))
    async def engine() -> Response:
        """Return the settings in force, each with its reason, and the counters."""
        serving = state.require()
        stats = await _stats(serving.engine)
        if stats is None:
            raise ApiError(503, "the engine didn't answer in time", kind="service_unavailable")
        return _json(
            EngineAnswer(
                object="engine",
                version=state.version,
                model=serving.names[0],
                max_model_len=serving.engine.max_model_len,
                settings=[asdict(record) for record in serving.engine.resolution.records],
                stats=msgspec.structs.asdict(stats),
            )
        )

    return router


async def _stats(engine: Engine) -> EngineStats | None:
    """Return the counters, or None when the engine is dead or busy with one long step."""
    try:
        async with asyncio.timeout(_STATS_SECONDS):
            return await engine.stats()
    except (TimeoutError, EngineDeadError):
        return None


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
