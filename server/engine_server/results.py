"""The engine's results for one HTTP request, which may have several prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Self

from engine.errors import EngineError, QueueFullError
from engine.request import RequestOutput
from engine.sampling_params import SamplingParams
from engine_server.engine_api import Engine, ResultStream
from engine_server.errors import ApiError, from_engine, server_error
from engine_server.metrics import Metrics

_FAILED = ("error", "abort")


class Results:
    """An async iterator of (index of the prompt, what is new); close it, and the engine stops.

    It is no generator on purpose: closing works whether or not it was ever iterated.
    """

    def __init__(
        self,
        streams: Sequence[ResultStream],
        metrics: Metrics,
        spelling: Mapping[str, str],
        timeout: float | None,
    ) -> None:
        self._streams = streams
        self._timeout = timeout
        now = asyncio.get_running_loop().time()
        self._deadline = None if timeout is None else now + timeout
        self._metrics = metrics
        self._spelling = spelling
        self._times = [_Times() for _ in streams]
        self._queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._open = len(streams)

    @classmethod
    async def start(
        cls,
        engine: Engine,
        prompts: Sequence[str | list[int]],
        params: SamplingParams,
        metrics: Metrics,
        spelling: Mapping[str, str],
        timeout: float | None = None,
    ) -> Self:
        """Hand all prompts to the engine, or none.

        Args:
            engine: makes the results.
            prompts: text or token ids.
            params: sampling, the same for all.
            metrics: where latencies go.
            spelling: the client's names of parameters that the engine calls differently.
            timeout: seconds from now until the last result must be there.

        Raises:
            ApiError: one isn't taken.
        """
        streams: list[ResultStream] = []
        try:
            for prompt in prompts:
                stream = await engine.submit(prompt, params)
                streams.append(stream)
        except BaseException as error:
            for stream in streams:
                await stream.aclose()
            if isinstance(error, EngineError):
                raise _answer(error, metrics, spelling) from None
            raise
        return cls(streams, metrics, spelling, timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, RequestOutput]:
        """Return the next news of any prompt.

        Raises:
            ApiError: the engine refused, failed or died.
        """
        try:
            if self._deadline is None:
                index, output = await self._next()
            else:
                async with asyncio.timeout_at(self._deadline):
                    index, output = await self._next()
        except TimeoutError:
            raise timed_out(self._timeout) from None
        except EngineError as error:
            raise _answer(error, self._metrics, self._spelling) from None
        new = 0
        for choice in output.outputs:
            new += len(choice.token_ids)
            if choice.finish_reason in _FAILED:
                raise server_error(output.error or "the engine ended the request")
        self._times[index].observe(output, new, self._metrics)
        return index, output

    async def _next(self) -> tuple[int, RequestOutput]:
        if len(self._streams) == 1:
            return 0, await self._streams[0].__anext__()
        if self._queue is None:
            self._queue = asyncio.Queue()
            self._pumps = [
                asyncio.create_task(self._pump(index, stream, self._queue))
                for index, stream in enumerate(self._streams)
            ]
        while self._open:
            index, item = await self._queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                return index, item
            self._open -= 1
        raise StopAsyncIteration

    @staticmethod
    async def _pump(
        index: int,
        stream: ResultStream,
        queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]],
    ) -> None:
        try:
            async for output in stream:
                queue.put_nowait((index, output))
        except Exception as error:  # noqa: BLE001  (raised again by whoever reads the queue)
            queue.put_nowait((index, error))
        else:
            queue.put_nowait((index, None))

    async def aclose(self) -> None:
        """End what still runs."""
        for pump in self._pumps:
            pump.cancel()
        for stream in self._streams:
            await stream.aclose()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._pumps, return_exceptions=True)


def timed_out(seconds: float | None) -> ApiError:
    """Return the answer for a request that took too long."""
    return ApiError(
        504,
        f"the request took longer than {seconds:g} s (--request-timeout)",
        kind="timeout",
        code="request_timeout",
    )


class _Times:
    """Measures one prompt's results."""

    def __init__(self) -> None:
        self._start = perf_counter()
        self._last = 0.0
        self._first = 0.0
        self._tokens = 0

    def observe(self, output: RequestOutput, new: int, metrics: Metrics) -> None:
        """Count a result with so many new tokens."""
        now = perf_counter()
        if new:
            if self._tokens:
                metrics.inter_token_latency.observe((now - self._last) / new, new)
            else:
                self._first = now
                metrics.time_to_first_token.observe(now - self._start)
            self._last = now
            self._tokens += new
        if output.finished:
            metrics.request_latency.observe(now - self._start)
            metrics.prompt_tokens.observe(len(output.prompt_token_ids))
            metrics.generation_tokens.observe(self._tokens)
            self._observe_phases(output.queue_seconds, now, metrics)

    def _observe_phases(self, queued: float, now: float, metrics: Metrics) -> None:
        """Take a finished request apart: waiting, computing the prompt, making tokens."""
        metrics.queue_time.observe(queued)
        if not self._tokens:
            return
        metrics.prefill_time.observe(max(0.0, self._first - self._start - queued))
        metrics.inference_time.observe(max(0.0, now - self._start - queued))
        metrics.decode_time.observe(now - self._first)
        if self._tokens > 1:
            metrics.time_per_output_token.observe((now - self._first) / (self._tokens - 1))


def _answer(error: EngineError, metrics: Metrics, spelling: Mapping[str, str]) -> ApiError:
    if isinstance(error, QueueFullError):
        metrics.rejections["queue_full"] += 1
    return from_engine(error, spelling)
