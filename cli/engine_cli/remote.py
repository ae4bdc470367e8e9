"""Speaks the chat protocol of OpenAI's API to a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import EngineDeadError, EngineError, RequestError
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS = 10.0


@contextmanager
def connect(
    url: str, *, model: str | None, api_key: str | None, params: SamplingParams
) -> Iterator[Callable[[list[dict[str, str]]], Iterator[str]]]:
    """Connect to a server; yields the function that answers a conversation piece by piece.

    Args:
        url: of the server, with or without `/v1`.
        model: the served name; the server's first when omitted.
        api_key: sent as a bearer token.
        params: what differs from the defaults is sent with each request.

    Raises:
        EngineError: the server can't be reached, or refuses.
    """
    import httpx

    base = url.rstrip("/").removesuffix("/v1") + "/v1/"
    if "://" not in base:
        base = f"http://{base}"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=timeout) as client:
            name = model or _first_model(client)
            # Defaults are left out, but the server's own limit on an answer is another one.
            sampling = {**msgspec.to_builtins(params), "max_tokens": params.max_tokens}
            body = {"model": name, "stream": True, **sampling}
            yield lambda messages: _answer(client, {**body, "messages": messages})
    except httpx.InvalidURL as error:
        raise EngineError(f"--url={url}: {error}") from error
    except httpx.TransportError as error:
        raise EngineDeadError(
            f"--url={url}: {error or type(error).__name__}; is a server running there?"
        ) from error


def _first_model(client: httpx.Client) -> str:
    response = client.get("models")
    _check(response)
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise EngineError(f"{response.url}: the answer lists no model") from None


def _answer(client: httpx.Client, body: dict[str, Any]) -> Iterator[str]:
    with client.stream("POST", "chat/completions", json=body) as response:
        if response.is_error:
            response.read()
        _check(response)
        for line in response.iter_lines():
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if data == "[DONE]":
                return
            if data:
                yield from _pieces(json.loads(data))


def _pieces(chunk: dict[str, Any]) -> Iterator[str]:
    if error := chunk.get("error"):
        raise EngineError(f"the server stopped: {error.get('message', error)}")
    for choice in chunk.get("choices", []):
        if text := choice.get("delta", {}).get("content"):
            yield text


def _check(response: httpx.Response) -> None:
    """Raise the server's own sentence.

    Raises:
        RequestError: the server refused the request.
    """
    if not response.is_error:
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = response.text.strip() or response.reason_phrase
    raise RequestError(f"{response.url} answered {response.status_code}: {message}")
