"""A small engine whose answers are known beforehand, and a real HTTP server around it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

import httpx
import openai
import pytest
import uvicorn
from transformers import PreTrainedTokenizerFast

from engine import AsyncEngine
from engine.config import EngineConfig
from engine.testing.scripted_engine import MAX_MODEL_LEN, ScriptedEngine, byte_tokenizer
from engine.testing.tiny import write_tiny_model
from engine_server.app import build_app
from engine_server.config import ServerConfig
from engine_server.lifecycle import tls_settings
from engine_server.state import ServerState


class RunningServer:
    """The application behind a real socket, in a thread of its own."""

    def __init__(
        self,
        engine: ScriptedEngine | None,
        config: ServerConfig,
        *,
        start: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """Take an engine, none yet, or the function that starts one in the server's loop."""
        self.engine: Any = engine
        self.config, self.start = config, start
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.state = ServerState(self.config)
        if self.start is not None:
            self.engine = await self.start()
        if self.engine is not None:
            self.state.ready(self.engine)
        self.http = uvicorn.Server(
            uvicorn.Config(
                build_app(self.state),
                host="127.0.0.1",
                port=0,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=2,
                **tls_settings(self.config),
            )
        )
        task = asyncio.create_task(self.http.serve())
        while not self.http.started:
            await asyncio.sleep(0.005)
        self.port = self.http.servers[0].sockets[0].getsockname()[1]
        self.ready.set()
        await task
        if self.engine is not None:
            await self.engine.close()

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.ready.wait(60)
        self.client = httpx.Client(base_url=self.url, timeout=20)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.http.should_exit = True
        self.thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, api_key: str = "-") -> Any:
        """Return an official client, to be closed; Any, as its types cover no extensions."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the server's loop and return its result."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so in the server's loop."""

        async def poll() -> None:
            while not condition():
                await asyncio.sleep(0.002)

        asyncio.run_coroutine_threadsafe(poll(), self.loop).result(10)


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server on the real engine, which runs a tiny random model in its own process."""
    model = write_tiny_model(tmp_path_factory.mktemp("model"), max_model_len=MAX_MODEL_LEN)
    config = EngineConfig(
        model=str(model), optimization_level=0, device="cpu", threads=1, num_kv_blocks=400
    )
    names = ServerConfig(served_model_name=("tiny",))
    with RunningServer(None, names, start=lambda: AsyncEngine.start(config)) as server:
        yield server


StartServer = Callable[..., RunningServer]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Start servers: `start_server(engine fields…, config={…}, starting=False)`."""
    running: list[RunningServer] = []

    def start(
        *, config: dict[str, Any] | None = None, starting: bool = False, **fields: Any
    ) -> RunningServer:
        engine = None if starting else ScriptedEngine(**fields)
        server = RunningServer(engine, ServerConfig(**(config or {}))).__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with RunningServer(ScriptedEngine(), ServerConfig()) as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> RunningServer:
    """A server whose engine answers with a text of its own for each prompt."""
    shared_server.engine.submitted.clear()
    return shared_server


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the scripted engine."""
    return byte_tokenizer()


@pytest.fixture
def scripted_engine() -> type[ScriptedEngine]:
    """The engine, for tests that start it themselves."""
    return ScriptedEngine


@pytest.fixture
def running_server() -> type[RunningServer]:
    """The server, for tests that bring an engine of their own."""
    return RunningServer
