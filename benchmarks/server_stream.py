"""How many tokens a second the API process can stream, with an echo in place of the model.

    python benchmarks/server_stream.py [--connections 64] [--tokens 500] [--path chat]

The server runs in a process of its own on the real application, detokenizer and results; only the
loop is replaced: all live requests get a token in each step, at once. Clients are another process.
The number to beat is 20,000 tokens/s on two cores: then a GPU is never kept waiting by HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import httpx
import uvicorn
import uvloop

from engine.config import EngineConfig
from engine.request import EngineOutput, EngineRequest, EngineStats
from engine.resolution import Resolution
from engine.runtime.async_engine import RequestStream
from engine.runtime.output_processor import OutputProcessor
from engine.testing.tiny import byte_tokenizer
from engine_server.app import build_app
from engine_server.config import ServerConfig
from engine_server.state import ServerState


class EchoEngine:
    """Gives every live request the next token of its prompt in each step."""

    def __init__(self) -> None:
        self.tokenizer: Any = byte_tokenizer()
        self.resolution = Resolution(EngineConfig(), ())
        self.model_name, self.max_model_len, self.pooling = "echo", 1_000_000, None
        self._outputs = OutputProcessor(self.tokenizer)
        self._live: dict[str, tuple[EngineRequest, int]] = {}
        self._streams: dict[str, RequestStream] = {}
        self._ids = 0
        self._step = asyncio.create_task(self._run())

    async def submit(self, prompt: str | list[int], params: Any) -> RequestStream:
        """Start a request."""
        ids = prompt if isinstance(prompt, list) else list(self.tokenizer(prompt).input_ids)
        self._ids += 1
        name = str(self._ids)
        for child in self._outputs.expand(name, None, ids, params, []):
            self._live[child.request_id] = (child, 0)
        stream = self._streams[name] = RequestStream(name, self)  # type: ignore[arg-type]  # aborts
        return stream

    async def abort(self, request_id: str) -> None:
        """End a request."""
        self._streams.pop(request_id, None)
        for child in self._outputs.abort(request_id):
            self._live.pop(child, None)

    async def run_with_tokenizer(self, work: Any, size: int) -> Any:
        """Return what the work makes of the tokenizer."""
        return work(self.tokenizer)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0 if self._live else 0.001)
            made = []
            for name, (request, count) in list(self._live.items()):
                ids, last = request.prompt_token_ids, count + 1 == request.params.max_tokens
                token = [ids[count % len(ids)]]
                reason = "length" if last else None
                made.append(EngineOutput(request_id=name, token_ids=token, finish_reason=reason))
                self._live[name] = (request, count + 1)
                if last:
                    del self._live[name]
            for result in self._outputs.process(made, delta=True)[0]:
                self._streams[result.request_id].put(result)

    async def stats(self) -> EngineStats:
        """Return nothing in particular."""
        return EngineStats()

    @property
    def alive(self) -> bool:
        """Whether it can serve."""
        return True


def serve(pipe: Connection) -> None:
    """Run the server until the parent ends; tell its port."""

    async def main() -> None:
        state = ServerState(ServerConfig(access_log=False))
        state.ready(EchoEngine())  # type: ignore[arg-type]  # what the routes use
        config = uvicorn.Config(
            build_app(state), port=0, http="httptools", lifespan="off", log_config=None
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])
        await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def load(url: str, path: str, connections: int, tokens: int, rounds: int) -> float:
    """Return tokens per second over all connections."""
    body: dict[str, Any] = {"max_tokens": tokens, "stream": True, "ignore_eos": True}
    text = "The quick brown fox jumps over the lazy dog. "
    if path == "chat":
        body["messages"] = [{"role": "user", "content": text}]
        url += "/v1/chat/completions"
    else:
        body["prompt"] = text
        url += "/v1/completions"
    limits = httpx.Limits(max_connections=connections)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:

        async def one() -> int:
            chunks = 0
            for _ in range(rounds):
                async with client.stream("POST", url, json=body) as response:
                    async for data in response.aiter_raw():
                        chunks += data.count(b"data: {")
            return chunks

        await one()
        start = time.perf_counter()
        counts = await asyncio.gather(*(one() for _ in range(connections)))
        seconds = time.perf_counter() - start
    extra = rounds * connections * (2 if path == "chat" else 1)
    made = sum(counts)
    wanted = rounds * connections * tokens
    if not wanted <= made <= wanted + extra:
        raise SystemExit(f"{made} chunks came for {wanted} tokens")
    return wanted / seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", choices=("chat", "completions"), default="chat")
    asked = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{mine.recv()}"
    speed = asyncio.run(load(url, asked.path, asked.connections, asked.tokens, asked.rounds))
    process.terminate()
    print(f"{asked.path}, {asked.connections} connections: {speed:,.0f} tokens/s")


if __name__ == "__main__":
    main()
