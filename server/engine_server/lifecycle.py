"""From the first connection to the exit code: starting, serving, draining, dying."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any, Protocol

import uvicorn

from engine.errors import ConfigError
from engine.events import Event
from engine.resolution import Resolution
from engine_server.app import build_app
from engine_server.config import ServerConfig
from engine_server.engine_api import Engine
from engine_server.state import ServerState

logger = logging.getLogger("engine_server")

_KEEP_ALIVE_SECONDS = 65
"""Longer than the pools of common clients, so that it's they who close an idle connection."""
_LAST_WORDS_SECONDS = 5
"""How long answers may take to leave after the engine has ended."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StartEngine(Protocol):
    """Starts the engine; raises EngineError with a sentence when it can't."""

    def __call__(self, *, on_event: Callable[[Event], None]) -> Awaitable[Engine]:
        """Return when it's ready."""
        ...


class Announce(Protocol):
    """Told once, when requests are taken."""

    def __call__(self, resolution: Resolution, *, seconds: float, phases: dict[str, float]) -> None:
        """Tell the user.

        Args:
            resolution: the settings in force.
            seconds: from the beginning until now.
            phases: seconds by phase.
        """
        ...


def tls_settings(config: ServerConfig) -> dict[str, Any]:
    """Return uvicorn's settings for HTTPS; none without a certificate.

    Raises:
        ConfigError: the certificate or its key can't be used.
    """
    if config.ssl_certfile is None:
        return {}
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(
            config.ssl_certfile, config.ssl_keyfile, config.ssl_keyfile_password or ""
        )
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"ssl_certfile={config.ssl_certfile}: cannot be used with its key: {error}"
        ) from None
    return {
        "ssl_certfile": config.ssl_certfile,
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_keyfile_password": config.ssl_keyfile_password,
        "ssl_ca_certs": None if config.ssl_ca_certs is None else str(config.ssl_ca_certs),
        "ssl_cert_reqs": ssl.CERT_NONE if config.ssl_ca_certs is None else ssl.CERT_REQUIRED,
    }


class _HttpServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Any:
        """Leave signals to the lifecycle."""
        yield


class Lifecycle:
    """One run of the server; all of it in one event loop in the main thread.

    Args:
        config: the server's settings.
        listener: a listening socket; closed at the end.
        start_engine: starts the engine.
        on_event: also receives the events of the start-up, from another thread.
        announce: told when requests are taken.
    """

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        *,
        start_engine: StartEngine,
        on_event: Callable[[Event], None] | None,
        announce: Announce,
    ) -> None:
        self._config = config
        self._listener = listener
        self._start_engine = start_engine
        self._on_event = on_event
        self._announce = announce
        self._state = ServerState(config)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._http = _HttpServer(
            uvicorn.Config(
                build_app(self._state),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,  # the middleware's own lines tell more
                **tls_settings(config),
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
            )
        )

    async def run(self) -> int:
        """Serve until told to stop, or until the engine dies.

        Returns:
            The exit code: 0 when told to stop, 1 when the engine died.

        Raises:
            EngineError: the engine couldn't start.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        # It ends by itself only when it fails; then there is nothing left to do here either.
        http.add_done_callback(lambda _: self._stop.set())
        try:
            engine = await self._start()
            if engine is None:
                return 0
            try:
                return await self._serve(engine)
            finally:
                await engine.close()
        finally:
            self._state.stopping = True
            self._http.should_exit = True
            await http
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _start(self) -> Engine | None:
        """Return the engine, or None when the user stopped waiting for it."""
        begun = perf_counter()
        starting = asyncio.ensure_future(self._start_engine(on_event=self._observe))
        if not await _first(starting, self._stop.wait()):
            logger.warning("stopped while the engine was starting")
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await (await starting).close()
            return None
        engine = starting.result()
        self._state.ready(engine)
        self._announce(
            engine.resolution,
            seconds=perf_counter() - begun,
            phases=self._state.phase_seconds,
        )
        return engine

    def _observe(self, event: Event) -> None:
        self._state.observe(event)
        if self._on_event is not None:
            self._on_event(event)

    async def _serve(self, engine: Engine) -> int:
        if await _first(engine.wait_dead(), self._stop.wait()):
            logger.error("the engine process ended unexpectedly; answering what is left")
            await self._answered(_LAST_WORDS_SECONDS)
            return 1
        self._state.stopping = True
        if running := self._state.running:
            logger.warning(
                "shutting down: %d running requests get %g s to finish; again to abort them",
                running,
                self._config.shutdown_timeout,
            )
        await self._answered(self._config.shutdown_timeout)
        return 0

    async def _answered(self, seconds: float) -> None:
        """Wait until every request is answered, the time is up, or the user is impatient."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _first(self._state.idle(), self._hurry.wait())


async def _first(wanted: Awaitable[Any], other: Awaitable[Any]) -> bool:
    """Wait for either; return whether the wanted one is done.

    A task that is given stays alive, what is made a task here doesn't.
    """
    tasks = [asyncio.ensure_future(each) for each in (wanted, other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task, given in zip(tasks, (wanted, other), strict=True):
            if task is not given:
                task.cancel()
