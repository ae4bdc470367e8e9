"""Answers a batch by the server's own application, without a socket."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from engine import AsyncEngine, EngineDeadError, Settings
from engine.events import Event
from engine_server.app import build_app
from engine_server.batch_file import AnswerFile, BatchRequest
from engine_server.config import ServerConfig
from engine_server.engine_api import Engine
from engine_server.state import ServerState

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.05


async def run_batch(
    settings: Settings,
    server: ServerConfig,
    requests: Sequence[BatchRequest],
    answers: AnswerFile,
    *,
    at_once: int,
    on_event: Callable[[Event], None] | None = None,
    on_answer: Callable[[], None] = lambda: None,
) -> None:
    """Start an engine, answer what isn't answered yet, and stop it.

    Args:
        settings: what was asked of the engine.
        server: names of the model, parser of tool calls, chat template.
        requests: the whole batch.
        answers: where answers go, in the order in which they are ready.
        at_once: requests that are in work at the same time.
        on_event: receives the events of the start-up.
        on_answer: called after each answer.

    Raises:
        EngineError: the engine can't start.
    """
    engine = await AsyncEngine.start(settings, on_event=on_event)
    try:
        await answer_batch(engine, server, requests, answers, at_once=at_once, on_answer=on_answer)
    finally:
        await engine.close()


async def answer_batch(
    engine: Engine,
    server: ServerConfig,
    requests: Sequence[BatchRequest],
    answers: AnswerFile,
    *,
    at_once: int,
    on_answer: Callable[[], None] = lambda: None,
) -> None:
    """Answer with an engine that runs; otherwise as `run_batch`.

    Raises:
        EngineDeadError: the engine died; what was answered until then is kept.
    """
    state = ServerState(server)
    state.ready(engine)
    left = iter([request for request in requests if request.custom_id not in answers.done])
    transport = httpx.ASGITransport(build_app(state), raise_app_exceptions=False)
    # A request of a batch may take its time.
    async with httpx.AsyncClient(
        transport=transport, base_url="http://batch", timeout=httpx.Timeout(None)
    ) as client:

        async def work() -> None:
            for request in left:
                answers.add(await _answer(client, request))
                on_answer()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(work())
        except ExceptionGroup as failed:
            # They all failed of the same thing; callers know single errors.
            raise failed.exceptions[0] from failed


async def _answer(client: httpx.AsyncClient, request: BatchRequest) -> dict[str, Any]:
    """Post a request until there is room for it.

    Raises:
        EngineDeadError: the engine died; the request isn't answered.
    """
    while True:
        response = await client.post(request.url, json=request.body)
        code = response.json().get("error", {}).get("code") if response.is_error else None
        if code == "engine_dead":
            raise EngineDeadError(response.json()["error"]["message"])
        if code != "queue_full":
            break
        # The batch itself fills the queue, by requests with many choices.
        await asyncio.sleep(_RETRY_SECONDS)
    if response.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
        logger.error("request %r failed in the server", request.custom_id)
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": request.custom_id,
        "response": {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id", ""),
            "body": response.json(),
        },
        "error": None,
    }
