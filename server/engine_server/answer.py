"""One answer to one conversation, as it comes: text and calls of tools, then how it ended.

What the APIs other than OpenAI's chat make of a conversation is written from this.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.request import RequestOutput
from engine.tool_parsers import Delta, new_call_id
from engine_server.disconnect import EventStream, while_connected
from engine_server.errors import ApiError, server_error
from engine_server.job import Job
from engine_server.metrics import Metrics
from engine_server.responses import Usage
from engine_server.results import Results
from engine_server.tools import Call, CallRelay, PlainText, Said
from engine_server.usage import UsageCount

logger = logging.getLogger(__name__)


class Answer:
    """An answer that is being made; iterate over `deltas` to the end.

    Args:
        job: one conversation, one choice.
        results: of it.

    Attributes:
        job: as given.
        finish_reason: `stop`, `length` or `tool_calls`, in the end.
        stop_reason: the stop string or token id that ended it, if one did.
    """

    def __init__(self, job: Job, results: Results) -> None:
        self.job = job
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._results = results
        self._usage = UsageCount()
        self._first: RequestOutput | None = None
        if job.tools is None:
            self._relay = CallRelay(PlainText(), new_call_id, single=False)
        else:
            self._relay = job.tools.relay()

    @property
    def parts(self) -> list[Said | Call]:
        """Stretches of text and calls so far, in the order of their coming."""
        return self._relay.parts

    @property
    def calls(self) -> list[Call]:
        """The calls so far."""
        return self._relay.calls

    @property
    def usage(self) -> Usage:
        """The token counts so far."""
        return self._usage.usage()

    async def begin(self) -> None:
        """Wait for the first result, so that what fails before it is an ordinary HTTP error."""
        _, first = await anext(self._results)
        self._usage.add(0, first)
        self._first = first

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Yield what is new.

        Raises:
            ApiError: the engine refused, failed or died.
        """
        if self._first is not None:
            first, self._first = self._first, None
            yield self._take(first)
        async for _, output in self._results:
            self._usage.add(0, output)
            yield self._take(output)

    def _take(self, output: RequestOutput) -> list[Delta]:
        deltas: list[Delta] = []
        for new in output.outputs:
            deltas += self._relay.push(new.text)
            if new.finish_reason is not None:
                deltas += self._relay.finish()
                self.finish_reason = self._relay.reason(new.finish_reason)
                self.stop_reason = new.stop_reason
        return deltas


async def answer_job(
    request: Request,
    metrics: Metrics,
    job: Job,
    *,
    whole: Callable[[Answer], msgspec.Struct | dict[str, object]],
    events: Callable[[Answer], AsyncIterator[bytes]],
    failed: Callable[[Answer, ApiError], bytes],
) -> Response:
    """Answer a job, whole or as a stream; a client that leaves ends it in both cases.

    Args:
        request: its body has been read.
        metrics: where latencies go.
        job: what to answer.
        whole: makes the answer of what came.
        events: renders a stream's events.
        failed: renders the event that ends a stream which failed.

    Raises:
        ApiError: nothing was sent yet and nothing will be.
        ClientGoneError: the client left before the first byte.
    """
    if not job.body.stream:
        return await while_connected(request, _whole(metrics, job, whole))
    results, answer = await while_connected(request, _begin(metrics, job))
    return EventStream(_stream(answer, events, failed), results)


async def _whole(
    metrics: Metrics, job: Job, whole: Callable[[Answer], msgspec.Struct | dict[str, object]]
) -> Response:
    async with aclosing(await job.start(metrics)) as results:
        answer = Answer(job, results)
        async for _ in answer.deltas():
            pass
    return Response(msgspec.json.encode(whole(answer)), media_type="application/json")


async def _begin(metrics: Metrics, job: Job) -> tuple[Results, Answer]:
    results = await job.start(metrics)
    answer = Answer(job, results)
    try:
        await answer.begin()
    except BaseException:
        await results.aclose()
        raise
    return results, answer


async def _stream(
    answer: Answer,
    events: Callable[[Answer], AsyncIterator[bytes]],
    failed: Callable[[Answer, ApiError], bytes],
) -> AsyncGenerator[bytes]:
    try:
        async for frames in events(answer):
            yield frames
    except ApiError as error:
        yield failed(answer, error)
    except Exception:
        logger.exception("a stream failed")
        yield failed(answer, server_error("the server failed; its log says why"))
