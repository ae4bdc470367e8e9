"""Two hundred clients at once, many of them rude: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import tracemalloc
from typing import Any

import httpx
import pytest

CLIENTS = 200
BAD_BODIES = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 5000,
    b'{"prompt": "a", "n": -1}',
    b'{"prompt": {"a": 1}}',
    b'{"prompt": "a", "temperature": 1e999}',
    b"null",
]


def joined(data: bytes) -> str:
    """Return the text of a whole stream."""
    *events, done = data.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    choices = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events]
    assert [c["finish_reason"] for c in choices].count(None) == len(choices) - 1
    return "".join(c["text"] for c in choices)


async def whole(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


async def streamed(client: httpx.AsyncClient, body: dict[str, Any], *, slowly: bool) -> str:
    data = b""
    request = client.stream("POST", "/v1/completions", json={**body, "stream": True})
    async with request as response:
        async for chunk in response.aiter_raw():
            data += chunk
            if slowly:
                await asyncio.sleep(0.01)
    return joined(data)


async def leaving(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    stream = random.random() < 0.5
    request = client.post("/v1/completions", json={**body, "stream": stream})
    with pytest.raises((asyncio.TimeoutError, httpx.ReadTimeout)):
        await asyncio.wait_for(request, random.uniform(0.001, 0.05))


async def malformed(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    content = random.choice(BAD_BODIES)
    response = await client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 400, (content[:50], response.text)
    assert set(response.json()) == {"error"}


async def storm(server: Any, tokenizer: Any) -> None:
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:

        async def one(number: int) -> None:
            prompt = f"prompt {number} {random.random()}"
            ids = list(tokenizer(prompt).input_ids)
            body = {"prompt": prompt, "max_tokens": 400}
            kind = number % 6
            if kind in (0, 1):
                await leaving(client, body)
            elif kind == 2:
                await malformed(client)
            else:
                expected = tokenizer.decode(server.engine.reply(ids, 0))
                if kind == 3:
                    found = await whole(client, body)
                else:
                    found = await streamed(client, body, slowly=kind == 4)
                assert found == expected

        await asyncio.gather(*(one(number) for number in range(CLIENTS)))


def test_a_storm_of_clients_leaves_nothing_behind(start_server: Any, tokenizer: Any) -> None:
    server = start_server(pace=0.004)

    def settled() -> bool:
        engine = server.engine
        return engine.free_blocks == 1000 and not engine.live and not server.state.running

    def tasks() -> int:
        return len(asyncio.all_tasks(server.loop))

    asyncio.run(storm(server, tokenizer))
    server.wait(settled)
    before = server.call(tasks)
    gc.collect()
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    asyncio.run(storm(server, tokenizer))
    server.wait(settled)
    server.engine.submitted.clear()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert server.call(tasks) <= before + 5
    assert grown < 2_000_000, f"{grown} bytes more after {CLIENTS} requests"
    assert server.client.post("/v1/completions", json={"prompt": "still"}).status_code == 200
