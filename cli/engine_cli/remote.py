"""Speaks the streaming protocol of OpenAI's API to a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import EngineDeadError, EngineError, RequestError
from engine.sampling_params import SamplingParams
from engine_cli.answering import Piece

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS = 10.0


class Remote:
    """A server's model.

    Args:
        client: connected to the server.
        body: the fields of each request.
    """

    def __init__(self, client: httpx.Client, body: dict[str, Any]) -> None:
        self._client, self._body = client, body

    def chat(self, messages: list[dict[str, str]]) -> Iterator[Piece]:
        """Answer a conversation piece by piece."""
        body = {**self._body, "messages": messages}
        for choice in _choices(self._client, "chat/completions", body):
            if text := choice.get("delta", {}).get("content"):
                yield Piece(text, 1, exact=False)

    def complete(self, prompt: str) -> Iterator[Piece]:
        """Continue a prompt piece by piece."""
        for choice in _choices(self._client, "completions", {**self._body, "prompt": prompt}):
            if text := choice.get("text"):
                yield Piece(text, 1, exact=False)


@contextmanager
def connect(
    url: str, *, model: str | None, api_key: str | None, params: SamplingParams
) -> Iterator[Remote]:
    """Connect to a server.

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
            yield Remote(client, {"model": name, "stream": True, **sampling})
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


def _choices(client: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the choices of a streamed answer."""
    with client.stream("POST", path, json=body) as response:
        if response.is_error:
            response.read()
        _check(response)
        for line in response.iter_lines():
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if data == "[DONE]":
                return
            if data:
                chunk = json.loads(data)
                if error := chunk.get("error"):
                    raise EngineError(f"the server stopped: {error.get('message', error)}")
                yield from chunk.get("choices", [])


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
