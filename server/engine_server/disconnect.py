"""Ends work that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from engine_server.errors import ClientGoneError

ResultT = TypeVar("ResultT")


async def while_connected(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Do the work, but cancel it when the client closes its connection.

    Args:
        request: its body has been read to the end.
        work: frees what it holds when it is cancelled.

    Raises:
        ClientGoneError: the client left first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Closable(Protocol):
    """What can be closed from outside."""

    async def aclose(self) -> None:
        """Close it."""


class EventStream(StreamingResponse):
    """A stream of server-sent events that closes what it reads from, however it ends.

    Starlette cancels a stream when the client leaves; it doesn't close the generators that it
    was iterating, and inside the cancelled scope nothing can be awaited. So whatever must be
    closed is closed here, outside that scope.

    Args:
        events: yields whole events; closed at the end, and then its source.
        source: where the events come from.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], source: Closable) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events, self._source = events, source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with aclosing(self._source), aclosing(self._events):
            await super().__call__(scope, receive, send)
