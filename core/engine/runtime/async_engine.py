"""The engine as an asyncio program sees it: the loop runs in its own process."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import multiprocessing
import multiprocessing.connection
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self, TypeVar

import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.errors import EngineDeadError, EngineError, QueueFullError, RequestError
from engine.events import Event
from engine.model_folder import read_pooling
from engine.registry import Registry
from engine.request import EngineStats, RequestOutput
from engine.resolution import Resolution
from engine.runtime.frontend import Frontend
from engine.runtime.loading import open_checkpoint, open_tokenizer
from engine.runtime.messages import (
    Abort,
    Add,
    AskStats,
    Outputs,
    Refused,
    Shutdown,
    Stats,
    decode_from_engine,
    encode,
)
from engine.runtime.output_processor import OutputProcessor
from engine.runtime.process import Failed, Ready, engine_process
from engine.runtime.tokenizer_thread import TokenizerThread
from engine.sampling_params import SamplingParams
from engine.settings import Settings, as_settings

ResultT = TypeVar("ResultT")

_STOP_SECONDS = 10.0
"""How long a stopping engine process may take before it is killed."""


class RequestStream:
    """The results of one request as they come: only what is new since the last one."""

    def __init__(self, request_id: str, engine: AsyncEngine) -> None:
        self.request_id = request_id
        self._engine = engine
        self._queue: asyncio.Queue[RequestOutput | EngineError] = asyncio.Queue()
        self._finished = False

    def put(self, item: RequestOutput | EngineError) -> None:
        """Deliver a result, or the error that ends the stream."""
        self._queue.put_nowait(item)

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._finished:
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, EngineError):
            self._finished = True
            raise item
        self._finished = item.finished
        return item

    async def aclose(self) -> None:
        """End the request if it still runs; its KV blocks are freed within two steps."""
        if not self._finished:
            self._finished = True
            await self._engine.abort(self.request_id)


class AsyncEngine:
    """Serves many requests at once; made with `start`.

    Attributes:
        resolution: the settings in force, with reasons.
        tokenizer: a transformers fast tokenizer, or None.
        model_name: what the model is called unless the server is told otherwise.
        max_model_len: the longest context, in tokens.
        pooling: how embeddings are made of hidden states; None when they can't be.
    """

    def __init__(
        self,
        ready: Ready,
        tokenizer: Any,
        process: BaseProcess,
        receiver: zmq.asyncio.Socket,
        sender: zmq.asyncio.Socket,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        self.resolution: Resolution = ready.resolution
        self.tokenizer = tokenizer
        self.model_name = ready.model_name
        self.pooling = _pooling(self.resolution.config)
        self.max_model_len = int(ready.resolution.config.max_model_len or 0)
        self._frontend = Frontend(
            tokenizer,
            max_model_len=self.max_model_len,
            kv_tokens=ready.kv_tokens,
            vocab_size=ready.vocab_size,
            end_token_ids=ready.end_token_ids,
        )
        self._tokenizing = TokenizerThread(tokenizer)
        self._outputs = OutputProcessor(tokenizer)
        self._process, self._receiver, self._sender = process, receiver, sender
        self._folder = folder
        self._streams: dict[str, RequestStream] = {}
        self._tickets = itertools.count()
        self._stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._dead = asyncio.Event()
        self._closing = False
        self._tasks = [
            asyncio.create_task(self._receive(), name="engine-receive"),
            asyncio.create_task(self._watch(), name="engine-watch"),
        ]

    @classmethod
    async def start(
        cls,
        settings: EngineConfig | Settings,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> Self:
        """Start the engine process and return when it is ready.

        Args:
            settings: what is asked for.
            on_event: receives the phases of the start-up.

        Raises:
            EngineError: a setting, a plugin, the model or its weights are unusable; the text is
                a sentence for the user.
        """
        settings = as_settings(settings)
        context = zmq.asyncio.Context.instance()
        folder = tempfile.TemporaryDirectory(prefix="engine-")
        inbox, outbox = (f"ipc://{Path(folder.name) / name}" for name in ("in", "out"))
        sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        for socket in (sender, receiver):
            socket.setsockopt(zmq.LINGER, 0)
        sender.setsockopt(zmq.SNDHWM, 0)
        receiver.setsockopt(zmq.RCVHWM, 0)
        sender.bind(inbox)
        receiver.bind(outbox)
        spawn = multiprocessing.get_context("spawn")
        pipe, child_pipe = spawn.Pipe(duplex=False)
        process = spawn.Process(
            target=engine_process,
            args=(settings, inbox, outbox, child_pipe),
            name="engine",
            daemon=True,
        )
        try:
            process.start()
            child_pipe.close()
            # Whatever fails first is told at once; a missing model is found here long before
            # the other process has imported torch.
            ready, tokenizer = await asyncio.gather(
                asyncio.to_thread(_await_ready, pipe, on_event),
                asyncio.to_thread(_tokenizer, settings),
            )
            return cls(ready, tokenizer, process, receiver, sender, folder)
        except BaseException:
            if process.pid is not None:
                process.kill()
            sender.close()
            receiver.close()
            folder.cleanup()
            raise

    async def submit(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
    ) -> RequestStream:
        """Start a request.

        Raises:
            RequestError: the prompt or a parameter is invalid; nothing was started.
            QueueFullError: as many requests wait as may.
            EngineDeadError: the engine process is gone.
        """
        if not self.alive:
            raise EngineDeadError("the engine process has ended; restart the server")
        text, ids = await self.run_with_tokenizer(
            lambda own: dataclasses.replace(self._frontend, tokenizer=own).encode(prompt),
            len(prompt),
        )
        self._frontend.check(ids, params)
        self._admit(params.n)
        request_id = request_id or uuid.uuid4().hex
        if request_id in self._streams:
            raise RequestError(f"request_id={request_id!r}: already running", param="request_id")
        children = self._outputs.expand(
            request_id, text, ids, params, list(self._frontend.end_token_ids)
        )
        stream = RequestStream(request_id, self)
        self._streams[request_id] = stream
        await self._sender.send(encode(Add(children)))
        return stream

    async def run_with_tokenizer(self, work: Callable[[Any], ResultT], size: int) -> ResultT:
        """Return what `work` makes of the tokenizer; the work of long texts runs on a thread.

        Args:
            work: gets the tokenizer (or None); must not keep it.
            size: characters that it reads, about.
        """
        return await self._tokenizing.run(work, size)

    def _admit(self, count: int) -> None:
        """Refuse what would overflow the queue before anything is sent to the client."""
        config, live = self.resolution.config, self._outputs.num_live
        if live + count > config.max_num_seqs + config.max_queue:
            raise QueueFullError(
                f"{live} sequences run or wait, {config.max_num_seqs} may run and "
                f"{config.max_queue} wait (--max-queue); try again later"
            )

    async def abort(self, request_id: str) -> None:
        """End a request; unknown or finished ones are ignored."""
        self._streams.pop(request_id, None)
        if (ids := self._outputs.abort(request_id)) and self.alive:
            await self._sender.send(encode(Abort(ids)))

    async def stats(self) -> EngineStats:
        """Return the engine's counters.

        Raises:
            EngineDeadError: the engine process is gone.
        """
        if not self.alive:
            raise EngineDeadError("the engine process has ended")
        ticket = next(self._tickets)
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._stats[ticket] = future
        await self._sender.send(encode(AskStats(ticket)))
        return await future

    @property
    def alive(self) -> bool:
        """Whether the engine process runs."""
        return not self._dead.is_set() and self._process.is_alive()

    @property
    def pid(self) -> int:
        """The process id of the engine."""
        return int(self._process.pid or 0)

    async def wait_dead(self) -> None:
        """Wait until the engine process has ended (never returns before that)."""
        await self._dead.wait()

    async def close(self) -> None:
        """Stop the engine process and free everything; running requests end with an error."""
        if self._closing:
            return
        self._closing = True
        self._tokenizing.close()
        if self.alive:
            await self._sender.send(encode(Shutdown()))
            await asyncio.to_thread(self._process.join, _STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
        await asyncio.to_thread(self._process.join)
        self._fail_all("the engine was shut down")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sender.close()
        self._receiver.close()
        self._folder.cleanup()

    async def _receive(self) -> None:
        while True:
            message = decode_from_engine(await self._receiver.recv())
            match message:
                case Outputs(outputs):
                    await self._deliver(outputs)
                case Refused(child, full, text, param):
                    await self._refuse(child, full=full, text=text, param=param)
                case Stats(ticket, stats):
                    if (future := self._stats.pop(ticket, None)) and not future.done():
                        future.set_result(stats)

    async def _deliver(self, outputs: list[Any]) -> None:
        results, aborts = self._outputs.process(outputs, delta=True)
        for result in results:
            stream = self._streams.get(result.request_id)
            if stream is not None:
                stream.put(result)
                if result.finished:
                    del self._streams[result.request_id]
        if aborts:
            await self._sender.send(encode(Abort(aborts)))

    async def _refuse(self, child: str, *, full: bool, text: str, param: str | None) -> None:
        request_id = self._outputs.parent(child)
        if request_id is None or (stream := self._streams.pop(request_id, None)) is None:
            return
        error = QueueFullError(text) if full else RequestError(text, param=param)
        stream.put(error)
        # Siblings of a refused child may have been taken already.
        if ids := self._outputs.abort(request_id):
            await self._sender.send(encode(Abort(ids)))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self._process.sentinel, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        if self._closing:
            self._fail_all("the engine was shut down")
        else:
            code = self._process.exitcode
            self._fail_all(f"the engine process ended unexpectedly (exit {code})")

    def _fail_all(self, reason: str) -> None:
        self._dead.set()
        error = EngineDeadError(reason)
        for stream in self._streams.values():
            stream.put(error)
        self._streams.clear()
        for future in self._stats.values():
            if not future.done():
                future.set_exception(error)
        self._stats.clear()


def _tokenizer(settings: Settings) -> Any:
    """Load the tokenizer here while the engine process loads weights."""
    registry = Registry()
    return open_tokenizer(settings.config, open_checkpoint(settings, registry))


def _pooling(config: EngineConfig) -> str | None:
    """Return how embeddings are made; None when the model isn't made for them."""
    if config.pooling == "auto":
        return read_pooling(Path(config.model or ""))
    return None if config.pooling == "none" else config.pooling


def _await_ready(
    pipe: multiprocessing.connection.Connection, on_event: Callable[[Event], None] | None
) -> Ready:
    """Hand on start-up events until the engine is ready.

    Raises:
        EngineError: it could not start.
    """
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            raise EngineDeadError(
                "the engine process ended during start-up (killed, or out of memory?)"
            ) from None
        if isinstance(message, Ready):
            return message
        if isinstance(message, Failed):
            if message.error is not None:
                message.error.add_note(message.trace)
                raise message.error
            raise EngineDeadError(f"the engine process failed to start:\n{message.trace}")
        if on_event is not None:
            on_event(message)
