"""Runs a job and answers, whole or as a stream; a client that leaves ends it in both cases."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.request import RequestOutput
from engine_server import sse
from engine_server.chunks import ChunkWriter
from engine_server.disconnect import EventStream, while_connected
from engine_server.errors import ApiError, server_error
from engine_server.gathering import Prompt, gather
from engine_server.job import Job
from engine_server.metrics import Metrics
from engine_server.results import Results
from engine_server.usage import UsageCount

logger = logging.getLogger(__name__)

WholeAnswer = Callable[[Job, list[Prompt], UsageCount], msgspec.Struct]


async def respond(
    request: Request,
    metrics: Metrics,
    job: Job,
    *,
    whole: WholeAnswer,
    writer: Callable[[Job], ChunkWriter],
) -> Response:
    """Answer a job.

    Args:
        request: its body has been read.
        metrics: where latencies go.
        job: what to answer.
        whole: makes the answer of gathered results.
        writer: renders a stream's chunks.

    Raises:
        ApiError: nothing was sent yet and nothing will be.
        ClientGoneError: the client left before the first byte.
    """
    if not job.body.stream:
        return await while_connected(request, _whole(metrics, job, whole))
    results, first = await while_connected(request, _first(metrics, job))
    events = _events(results, first, writer(job), with_usage=job.body.include_usage)
    return EventStream(events, results)


async def _whole(metrics: Metrics, job: Job, whole: WholeAnswer) -> Response:
    async with aclosing(await job.start(metrics)) as results:
        prompts, usage = await gather(results, prompts=len(job.prompts), n=job.params.n)
    answer = msgspec.json.encode(whole(job, prompts, usage))
    return Response(answer, media_type="application/json")


async def _first(metrics: Metrics, job: Job) -> tuple[Results, tuple[int, RequestOutput]]:
    """Wait for the first result, so that what fails before it is an ordinary HTTP error."""
    results = await job.start(metrics)
    try:
        return results, await anext(results)
    except BaseException:
        await results.aclose()
        raise


async def _events(
    results: Results, first: tuple[int, RequestOutput], writer: ChunkWriter, *, with_usage: bool
) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; it ends with [DONE], after an error too."""
    try:
        yield writer.render(*first)
        async for prompt, output in results:
            if frames := writer.render(prompt, output):
                yield frames
        if with_usage:
            yield writer.usage()
    except ApiError as error:
        yield sse.event(error.body())
    except Exception:
        logger.exception("a stream failed")
        yield sse.event(server_error("the server failed; its log says why").body())
    yield sse.DONE
