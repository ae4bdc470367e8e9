"""A client that leaves gives its blocks back, whenever it leaves."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

NUM_BLOCKS = 1000


def post(server: Any, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request over a bare socket, which the caller closes."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data)
    return connection


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": ["abc", "d"], "n": 2, "max_tokens": 300},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_ends_the_request(
    start_server: Any, path: str, stream: bool
) -> None:
    server = start_server(hold=True)
    connection = post(server, path, {**BODIES[path], "stream": stream})
    server.wait(lambda: len(server.engine.live) >= 1)
    connection.close()
    server.wait(lambda: server.engine.free_blocks == NUM_BLOCKS)
    assert server.engine.aborted >= 1
    server.wait(lambda: server.state.running == 0)
    metrics = server.client.get("/metrics").text
    assert f'handler="{path}",method="POST",status="499"' in metrics


@pytest.mark.parametrize("path", BODIES)
def test_leaving_in_mid_stream_ends_the_request(start_server: Any, path: str) -> None:
    server = start_server(text="abcdef" * 10, pause_after=3)
    connection = post(server, path, {**BODIES[path], "stream": True})
    received = b""
    while b'"c"' not in received:
        received += connection.recv(65536)
    connection.close()
    server.wait(lambda: server.engine.free_blocks == NUM_BLOCKS)
    assert server.engine.aborted >= 1


def test_leaving_while_a_whole_answer_is_made_ends_the_request(start_server: Any) -> None:
    server = start_server(text="abcdef" * 10, pause_after=3)
    connection = post(server, "/v1/completions", BODIES["/v1/completions"])
    server.wait(lambda: len(server.engine.live) == 2)
    connection.close()
    server.wait(lambda: server.engine.free_blocks == NUM_BLOCKS)
    assert server.engine.aborted == 2


def test_a_client_that_stops_reading_is_noticed_when_it_leaves(start_server: Any) -> None:
    server = start_server(text="x" * 400, pace=0.0005)
    connection = post(
        server, "/v1/completions", {"prompt": "a", "max_tokens": 400, "n": 64, "stream": True}
    )
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    server.wait(lambda: len(server.engine.live) == 1)
    connection.close()
    server.wait(lambda: server.engine.free_blocks == NUM_BLOCKS)


def test_two_hundred_clients_that_leave_leave_nothing_behind(start_server: Any) -> None:
    server = start_server(text="abcdefgh" * 20, pace=0.001)
    url = f"{server.url}/v1/completions"

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        body = {"prompt": f"{number}", "max_tokens": 200, "stream": number % 2 == 0}
        try:
            async with asyncio.timeout(0.002 * (number % 40)):
                async with client.stream("POST", url, json=body) as response:
                    async for _ in response.aiter_bytes():
                        pass
        except TimeoutError:
            pass

    async def main() -> None:
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(limits=limits, timeout=20) as client:
            await asyncio.gather(*(leave(client, number) for number in range(200)))

    asyncio.run(main())
    server.wait(lambda: server.engine.free_blocks == NUM_BLOCKS and not server.engine.live)
    server.wait(lambda: server.state.running == 0)


def test_the_official_client_closing_a_stream_ends_the_request(start_server: Any) -> None:
    server = start_server(text="abcdef", pause_after=2)
    with server.openai() as client:
        stream = client.completions.create(model="scripted", prompt="a", stream=True)
        next(iter(stream))
        stream.close()
        server.wait(lambda: server.engine.free_blocks == NUM_BLOCKS)


def test_a_failed_request_among_several_ends_the_others(start_server: Any) -> None:
    server = start_server(text="abcdef", pause_after=1, fail_at=0)
    response = server.client.post("/v1/completions", json={"prompt": ["a", "b", "c"]})
    assert response.status_code == 500
    assert server.call(lambda: server.engine.free_blocks) == NUM_BLOCKS
