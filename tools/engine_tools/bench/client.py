"""Sends one completion to an OpenAI-compatible server and notes when its tokens come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from engine.errors import EngineError
from engine_tools.bench.prompts import Ask

_LONGEST_REASON = 200


@dataclass
class Exchange:
    """One request and its answer; times are seconds of one clock.

    Attributes:
        due: when it arrived.
        sent: when it was sent; later than `due` where it had to wait for a free place.
        chunks: when each chunk with something new came.
        last: when the answer was whole.
        output_tokens: as the server counts; as many as chunks where it doesn't say.
        prompt_tokens: as the server counts; None where nobody knows.
        counted: whether the server said how many tokens there are.
        error: why it failed; empty if it didn't.
        ended: whether the server said that the answer is whole.
    """

    due: float = 0.0
    sent: float = 0.0
    chunks: list[float] = field(default_factory=list)
    last: float = 0.0
    output_tokens: int = 0
    prompt_tokens: int | None = None
    counted: bool = False
    error: str = ""
    ended: bool = False

    @property
    def ttft(self) -> float:
        """Time to the first chunk."""
        return self.chunks[0] - self.sent

    @property
    def e2e(self) -> float:
        """Time to the whole answer."""
        return self.last - self.sent

    @property
    def itl(self) -> list[float]:
        """Times between one chunk and the next."""
        return [b - a for a, b in zip(self.chunks, self.chunks[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Time for each token after the first; None when there is none."""
        rest = self.output_tokens - 1
        return (self.last - self.chunks[0]) / rest if rest > 0 else None


def base_url(url: str) -> str:
    """Return the address below which the API lies, for an address with or without `/v1`."""
    base = url.rstrip("/").removesuffix("/v1") + "/v1/"
    return base if "://" in base else f"http://{base}"


async def first_model(client: httpx.AsyncClient, timeout: float) -> str:
    """Return the first model that a server lists.

    Args:
        client: of the server.
        timeout: seconds that it may take.

    Raises:
        EngineError: the server can't be reached, or lists none.
    """
    try:
        response = await client.get("models", timeout=timeout)
        return str(response.raise_for_status().json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        code, message = error.response.status_code, _message(error.response)
        raise EngineError(
            f"--url={client.base_url}: it answered {code} to a question for its models: {message}"
        ) from error
    except httpx.HTTPError as error:
        what = str(error) or type(error).__name__
        raise EngineError(f"--url={client.base_url}: {what}; is a server running there?") from error
    except (ValueError, LookupError, TypeError):
        raise EngineError(
            f"--url={client.base_url}: the server lists no model; name one with --model"
        ) from None


async def complete(
    client: httpx.AsyncClient, ask: Ask, body: dict[str, Any], exchange: Exchange, timeout: float
) -> None:
    """Send a request and fill in what came of it; a failure is written down, not raised.

    Args:
        client: of the server.
        ask: the prompt.
        body: the rest of the request.
        exchange: receives the times.
        timeout: seconds that the whole answer may take.
    """
    exchange.sent = time.perf_counter()
    if not isinstance(ask.prompt, str):
        exchange.prompt_tokens = len(ask.prompt)
    whole = {**body, "prompt": ask.prompt, "max_tokens": ask.output_len}
    try:
        async with asyncio.timeout(timeout):
            await _stream(client, whole, exchange)
    except TimeoutError:
        exchange.error = f"no whole answer within {timeout:g} s"
    except httpx.HTTPError as error:
        exchange.error = f"{type(error).__name__}: {error}".strip(": ")
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        exchange.error = "the stream has a chunk that isn't one of the completions API"
    if not exchange.counted:
        exchange.output_tokens = len(exchange.chunks)
    exchange.error = exchange.error or _incomplete(exchange)


async def _stream(client: httpx.AsyncClient, body: dict[str, Any], exchange: Exchange) -> None:
    async with client.stream("POST", "completions", json=body) as response:
        if response.is_error:
            await response.aread()
            exchange.error = f"HTTP {response.status_code}: {_message(response)}"
            return
        async for line in response.aiter_lines():
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if data == "[DONE]":
                exchange.ended = True
            elif data:
                _take(msgspec.json.decode(data), time.perf_counter(), exchange)


def _take(chunk: dict[str, Any], now: float, exchange: Exchange) -> None:
    """Read one chunk: something new, the end, the usage, or an error."""
    if error := chunk.get("error"):
        message = error.get("message", error) if isinstance(error, dict) else error
        exchange.error = str(message)[:_LONGEST_REASON]
    for choice in chunk.get("choices") or ():
        ends = choice.get("finish_reason") is not None
        exchange.ended = exchange.ended or ends
        exchange.last = now
        # The last chunk may carry the end alone, or all there is: tokens may have no text.
        if choice.get("text") or not ends or not exchange.chunks:
            exchange.chunks.append(now)
    usage = chunk.get("usage") or {}
    if "completion_tokens" in usage:
        exchange.output_tokens = usage["completion_tokens"]
        exchange.prompt_tokens = usage.get("prompt_tokens", exchange.prompt_tokens)
        exchange.counted = True


def _incomplete(exchange: Exchange) -> str:
    if not exchange.ended:
        return "the stream ended before the answer did"
    return "" if exchange.chunks and exchange.output_tokens else "the answer had no tokens"


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])[:_LONGEST_REASON]
    except (ValueError, LookupError, TypeError):
        return (response.text.strip() or response.reason_phrase)[:_LONGEST_REASON]


def succeeded(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return those that were answered."""
    return [exchange for exchange in exchanges if not exchange.error]
