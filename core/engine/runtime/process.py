"""The engine process: builds the engine, then loops over messages and steps."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
from dataclasses import dataclass
from typing import Any

import zmq

from engine.errors import EngineError, QueueFullError, RequestError
from engine.events import (
    EngineReady,
    Event,
    ModelCompiled,
    PhaseAdvanced,
    PhaseFinished,
    PhaseStarted,
    SettingsResolved,
)
from engine.events import Notice as NoticeEvent
from engine.resolution import Resolution
from engine.runtime.engine_core import EngineCore
from engine.runtime.messages import (
    Abort,
    Add,
    AskStats,
    Outputs,
    Refused,
    Shutdown,
    Stats,
    ToEngine,
    decode_to_engine,
    encode,
)
from engine.settings import Settings

logger = logging.getLogger(__name__)

_FORWARDED = (
    SettingsResolved,
    PhaseStarted,
    PhaseAdvanced,
    PhaseFinished,
    ModelCompiled,
    EngineReady,
    NoticeEvent,
)
"""Events that the API process shows while the engine starts."""


@dataclass(frozen=True)
class Ready:
    """The engine serves; what the API process needs to know of it."""

    resolution: Resolution
    model_name: str
    kv_tokens: int
    vocab_size: int
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Failed:
    """The engine could not start."""

    error: EngineError | None
    """The error for the user, or None when it is a fault of ours."""
    trace: str


def engine_process(
    settings: Settings, inbox: str, outbox: str, pipe: multiprocessing.connection.Connection
) -> None:
    """Run an engine until it is told to stop or its parent is gone.

    Args:
        settings: what was asked for.
        inbox: ZeroMQ address to receive `ToEngine` messages from.
        outbox: ZeroMQ address to send `FromEngine` messages to.
        pipe: for start-up only: events, then `Ready` or `Failed`.
    """
    # Ctrl-C reaches the whole process group; the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_with_parent()
    core: EngineCore | None = None
    try:
        core = EngineCore(settings, on_event=lambda event: _forward(event, pipe))
        pipe.send(
            Ready(
                resolution=core.resolution,
                model_name=core.model_name,
                kv_tokens=core.kv_tokens,
                vocab_size=core.vocab_size,
                end_token_ids=core.end_token_ids,
            )
        )
    except EngineError as error:
        pipe.send(Failed(error, traceback.format_exc()))
        return
    except Exception:
        logger.exception("the engine could not start")
        pipe.send(Failed(None, traceback.format_exc()))
        return
    finally:
        pipe.close()
    context = zmq.Context()
    try:
        with context.socket(zmq.PULL) as receiver, context.socket(zmq.PUSH) as sender:
            sender.setsockopt(zmq.LINGER, 1000)
            sender.setsockopt(zmq.SNDHWM, 0)
            receiver.setsockopt(zmq.RCVHWM, 0)
            receiver.connect(inbox)
            sender.connect(outbox)
            _Loop(core, receiver, sender).run()
    finally:
        core.close()
        context.term()


def _forward(event: Event, pipe: multiprocessing.connection.Connection) -> None:
    if isinstance(event, _FORWARDED) and not pipe.closed:
        pipe.send(event)


def _leave_with_parent() -> None:
    """End this process when its parent dies, however it dies."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class _Loop:
    def __init__(
        self, core: EngineCore, receiver: zmq.Socket[bytes], sender: zmq.Socket[bytes]
    ) -> None:
        self._core, self._receiver, self._sender = core, receiver, sender
        self._stopping = False

    def run(self) -> None:
        """Serve until told to stop: messages first, then one step."""
        while not self._stopping:
            while (message := self._next_message()) is not None:
                self._handle(message)
            if not self._stopping and (outputs := self._core.step()):
                self._send(Outputs(outputs))
            for request_id, error in self._core.take_refused():
                self._refuse(request_id, error)

    def _next_message(self) -> ToEngine | None:
        """Return a waiting message; wait for one only when there is nothing to compute."""
        if self._stopping:
            return None
        idle = not self._core.has_work
        if not self._receiver.poll(None if idle else 0):
            return None
        return decode_to_engine(self._receiver.recv())

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Add(requests):
                self._add(requests)
            case Abort(request_ids):
                for request_id in request_ids:
                    self._core.abort(request_id)
            case AskStats(ticket):
                self._send(Stats(ticket, self._core.stats()))
            case Shutdown():
                self._stopping = True

    def _add(self, requests: list[Any]) -> None:
        for request in requests:
            try:
                self._core.add(request)
            except (QueueFullError, RequestError) as error:
                self._refuse(request.request_id, error)

    def _refuse(self, request_id: str, error: EngineError) -> None:
        full, param = isinstance(error, QueueFullError), getattr(error, "param", None)
        self._send(Refused(request_id, full=full, message=str(error), param=param))

    def _send(self, message: Any) -> None:
        self._sender.send(encode(message))
