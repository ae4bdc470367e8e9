"""From the port to the exit code: starting, ending, dying."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import engine_server
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError
from engine.events import PhaseFinished, PhaseStarted
from engine.settings import Settings
from engine_server import listener
from engine_server.config import ServerConfig
from engine_server.lifecycle import Lifecycle


class Run:
    """One run of the lifecycle in this thread, while a script plays the client in another."""

    def __init__(self, make_engine: Callable[[], Any], **config: Any) -> None:
        self.config = ServerConfig(**{"port": 0, **config})
        self.socket = listener.listen(self.config)
        self.url = listener.url(self.socket, self.config)
        self.make_engine = make_engine
        self.engine: Any = None
        self.may_start = threading.Event()
        self.may_start.set()
        self.announced: list[Any] = []
        self.failure: BaseException | None = None

    async def start_engine(self, *, on_event: Callable[[Any], None]) -> Any:
        await asyncio.to_thread(on_event, PhaseStarted("load"))
        while not self.may_start.is_set():
            await asyncio.sleep(0.005)
        on_event(PhaseFinished("load", 0.5))
        self.engine = self.make_engine()
        return self.engine

    def __call__(self, script: Callable[[httpx.Client], None]) -> int:
        async def main() -> int:
            self.loop = asyncio.get_running_loop()
            return await Lifecycle(
                self.config,
                self.socket,
                start_engine=self.start_engine,
                on_event=None,
                announce=lambda resolution, **told: self.announced.append((resolution, told)),
            ).run()

        def play() -> None:
            try:
                with httpx.Client(base_url=self.url, timeout=10) as client:
                    script(client)
            except BaseException as error:  # noqa: BLE001  (raised again in the test's thread)
                self.failure = error
                os.kill(os.getpid(), signal.SIGTERM)

        player = threading.Thread(target=play)
        player.start()
        try:
            return asyncio.run(main())
        finally:
            player.join(10)
            listener.close(self.socket, self.config)
            if self.failure is not None:
                raise self.failure


def until(client: httpx.Client, path: str, status: int) -> httpx.Response:
    """Ask until the answer has the status."""
    deadline = time.monotonic() + 10
    while (response := client.get(path)).status_code != status:
        assert time.monotonic() < deadline, response.text
        time.sleep(0.005)
    return response


def stop(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_with_exit_code_0(scripted_engine: Any, number: int) -> None:
    run = Run(scripted_engine)

    def script(client: httpx.Client) -> None:
        until(client, "/ready", 200)
        stop(number)

    assert run(script) == 0
    assert run.engine.closed
    ((resolution, told),) = run.announced
    assert resolution is run.engine.resolution
    assert told["phases"] == {"load": 0.5}


def test_connections_are_answered_while_the_engine_starts(scripted_engine: Any) -> None:
    run = Run(scripted_engine)
    run.may_start.clear()

    def script(client: httpx.Client) -> None:
        assert client.get("/health").status_code == 200
        until(client, "/ready", 503)
        while client.get("/ready").json()["phase"] != "load":
            time.sleep(0.005)
        assert client.get("/v1/models").json()["error"]["code"] == "starting"
        run.may_start.set()
        until(client, "/ready", 200)
        assert client.get("/v1/models").status_code == 200
        stop()

    assert run(script) == 0


def test_a_signal_during_the_start_ends_it(scripted_engine: Any) -> None:
    run = Run(scripted_engine)
    run.may_start.clear()

    def script(client: httpx.Client) -> None:
        assert client.get("/health").status_code == 200
        stop(signal.SIGINT)

    assert run(script) == 0
    assert run.engine is None


def test_a_failed_start_is_raised_with_its_sentence(scripted_engine: Any) -> None:
    def fail() -> None:
        raise ModelError("/models/x: no such folder")

    with pytest.raises(ModelError, match="no such folder"):
        Run(fail)(lambda client: None)


def stream_of(client: httpx.Client, text: list[str], started: threading.Event) -> None:
    body = {"prompt": "a", "stream": True, "max_tokens": 400}
    with client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            text.append(line)
            started.set()


def test_running_requests_finish_before_the_end_and_new_ones_are_refused(
    scripted_engine: Any,
) -> None:
    run = Run(lambda: scripted_engine(text="x" * 100, pace=0.005))
    lines: list[str] = []

    def script(client: httpx.Client) -> None:
        until(client, "/ready", 200)
        started = threading.Event()
        reader = threading.Thread(target=stream_of, args=(client, lines, started))
        reader.start()
        assert started.wait(10)
        stop()
        ready = until(client, "/ready", 503)
        assert ready.json()["error"]["code"] == "shutting_down"
        refused = client.post("/v1/completions", json={"prompt": "b"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        reader.join(10)

    assert run(script) == 0
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    assert sum(len(json.loads(d)["choices"][0]["text"]) for d in data[:-1]) == 100


@pytest.mark.parametrize("by", ["the time being up", "a second signal"])
def test_the_end_does_not_wait_for_ever(scripted_engine: Any, by: str) -> None:
    timeout = 0.05 if by == "the time being up" else 60
    run = Run(lambda: scripted_engine(pause_after=1, text="xyz"), shutdown_timeout=timeout)
    lines: list[str] = []

    def script(client: httpx.Client) -> None:
        until(client, "/ready", 200)
        started = threading.Event()
        reader = threading.Thread(target=stream_of, args=(client, lines, started))
        reader.start()
        assert started.wait(10)
        stop()
        if timeout == 60:
            until(client, "/ready", 503)
            stop()
        reader.join(10)

    begun = time.monotonic()
    assert run(script) == 0
    assert time.monotonic() - begun < 10
    assert '"code":"engine_dead"' in lines[-4]
    assert "the engine was shut down" in lines[-4]
    assert lines[-2] == "data: [DONE]"


def test_the_server_ends_with_1_when_its_engine_dies(
    scripted_engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(lambda: scripted_engine(pause_after=1, text="xyz"))
    lines: list[str] = []

    def script(client: httpx.Client) -> None:
        until(client, "/ready", 200)
        started = threading.Event()
        reader = threading.Thread(target=stream_of, args=(client, lines, started))
        reader.start()
        assert started.wait(10)
        run.loop.call_soon_threadsafe(run.engine.die)
        reader.join(10)

    assert run(script) == 1
    assert '"code":"engine_dead"' in lines[-4]
    assert lines[-2] == "data: [DONE]"
    assert "the engine process ended unexpectedly" in caplog.text


def test_a_port_in_use_is_told_before_anything_heavy_is_imported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = f"""
import sys
import engine_server
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.settings import Settings
try:
    engine_server.run(Settings(EngineConfig()), engine_server.ServerConfig(port={port}))
except ConfigError as error:
    print(error)
print(sorted({{"torch", "fastapi", "uvicorn", "transformers"}} & set(sys.modules)))
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    sentence, modules = done.stdout.splitlines()
    assert sentence.startswith(f"port={port}: already in use on 127.0.0.1")
    assert "--port" in sentence
    assert modules == "[]"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"host": "no.such.host.invalid"}, "--host"),
        ({"host": "192.0.2.1"}, "no address of this machine"),
        ({"uds": Path("/nowhere/at/all")}, "No such file"),
        ({"uds": Path("/tmp/" + "x" * 200)}, "too long"),
    ],
)
def test_an_address_that_can_not_be_had_is_told(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listener.listen(ServerConfig(**config))


def test_a_unix_socket_is_shared_with_nobody_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    config = ServerConfig(uds=path)
    first = listener.listen(config)
    with pytest.raises(ConfigError, match="already in use"):
        listener.listen(config)
    first.close()
    # What a killed server left behind is no obstacle.
    assert path.exists()
    second = listener.listen(config)
    assert listener.url(second, config) == f"unix:{path}"
    listener.close(second, config)
    assert not path.exists()


def test_a_free_port_is_taken_and_told() -> None:
    config = ServerConfig(port=0)
    taken = listener.listen(config)
    assert listener.url(taken, config).startswith("http://127.0.0.1:")
    assert not listener.url(taken, config).endswith(":0")
    listener.close(taken, config)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"port": -1}, "port=-1"),
        ({"port": 65536}, "port=65536"),
        ({"port": "x"}, "port='x'"),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
        ({"log_level": "loud"}, "log_level='loud'"),
        ({"nothing": 1}, "no such setting"),
        ({"uds": Path("a"), "port": 1}, "uds and port contradict"),
        ({"metrics_prefix": "a b"}, "metrics_prefix"),
        ({"root_path": "llm"}, "root_path"),
        ({"api_key": ("",)}, "api_key"),
        ({"api_key": ("schlüssel",)}, "api_key"),
        ({"served_model_name": (" ",)}, "served_model_name"),
        ({"request_timeout": 0}, "request_timeout"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerConfig(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ssl_keyfile": Path("key.pem")}, "ssl_keyfile: needs ssl_certfile"),
        ({"ssl_certfile": Path("no.pem")}, "ssl_certfile=no.pem: cannot be read"),
        ({"chat_template": Path("no.jinja")}, "chat_template=no.jinja: cannot be read"),
    ],
)
def test_a_file_that_is_missing_is_told_before_anything_is_loaded(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        engine_server.run(Settings(EngineConfig()), ServerConfig(port=0, **values))


def test_keys_are_never_shown() -> None:
    assert "secret" not in repr(ServerConfig(api_key=("secret",)))
    with pytest.raises(ConfigError) as caught:
        ServerConfig(api_key=("secret\n",))
    assert "secret" not in str(caught.value)
