"""Around every request: counting it, naming it, and asking for its key. Plain ASGI throughout."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Sequence
from time import perf_counter
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_server.errors import ApiError
from engine_server.logs import log_access
from engine_server.state import ServerState

_REQUEST_ID = b"x-request-id"
_SAFE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_CLIENT_CLOSED = 499
"""The status that nginx made customary for a client that left before it was answered."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observed:
    """Counts and times requests, and gives each answer the id of its request.

    Args:
        app: what answers.
        state: where it is counted.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = perf_counter(), _CLIENT_CLOSED
        request_id = _request_id(scope)

        async def observing_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (_REQUEST_ID, request_id)]
            await send(message)

        self._state.enter()
        try:
            await self._app(scope, receive, observing_send)
        except Exception:
            status = 500
            raise
        finally:
            self._state.leave()
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds = perf_counter() - start
            self._state.metrics.answered(method, _route(scope), status, seconds)
            log_access(
                method,
                quote(scope["path"]),
                status,
                client=_client(scope),
                seconds=seconds,
                request_id=request_id.decode(),
            )


class Published:
    """Tells the routes under which path a proxy publishes them, whether or not it cuts it off.

    Args:
        app: what answers.
        root_path: the path.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["root_path"] = self._root_path
        await self._app(scope, receive, send)


class ApiKeys:
    """Lets requests through that bring a key.

    Args:
        app: what answers.
        keys: the keys; at least one.
        open_paths: what needs none.
        root_path: under which a proxy may publish the server.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], open_paths: frozenset[str], root_path: str
    ) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._open = open_paths | {root_path + path for path in open_paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            given = _given_key(Headers(scope=scope))
            if not self._known(given):
                await _refusal(given).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _known(self, given: str) -> bool:
        # Every key is compared, each in constant time, so that time tells nothing.
        matches = [secrets.compare_digest(given.encode(), key) for key in self._keys]
        return any(matches)


def _given_key(headers: Headers) -> str:
    """Return the key as OpenAI's clients send it, or as Anthropic's do; empty without one."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _refusal(given: str) -> ApiError:
    return ApiError(
        401,
        "Incorrect API key provided."
        if given
        else "No API key provided; send the header `Authorization: Bearer KEY`.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _client(scope: Scope) -> str:
    """Return the client's address; a Unix socket's clients have none."""
    host, port = scope.get("client") or ("-", 0)
    return f"{host}:{port}" if port else str(host)


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == _REQUEST_ID and _SAFE_ID.fullmatch(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()


def _route(scope: Scope) -> str:
    """Return the route's pattern; one word for all unknown paths, or there were no end of them."""
    return getattr(scope.get("route"), "path", "unknown")
