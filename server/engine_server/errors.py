"""One shape for every error: OpenAI's `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from engine.errors import EngineDeadError, EngineError, QueueFullError, RequestError

_OVERFLOW = "maximum context length"
"""What clients look for in the message of a prompt that is too long; the engine writes it."""
RETRY_SECONDS = 1
"""What a client is told to wait when the server is busy or starting."""


class ApiError(Exception):
    """An answer that isn't the one asked for.

    Attributes:
        status: HTTP status.
        message: a sentence for whoever wrote the request.
        kind: OpenAI's `type`.
        param: the parameter at fault, as the client spelt it.
        code: a word for programs.
        headers: to send along.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self, **more: object) -> bytes:
        """Return the JSON, with what a route adds beside `error`."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error, **more})

    def response(self, **more: object) -> Response:
        """Return the HTTP response."""
        return Response(self.body(**more), self.status, self.headers, media_type="application/json")


class ClientGoneError(Exception):
    """The client closed its connection; nobody reads an answer."""


def unavailable(message: str, code: str) -> ApiError:
    """Return a 503 that asks the client to come back."""
    return ApiError(
        503,
        message,
        kind="service_unavailable",
        code=code,
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def server_error(message: str) -> ApiError:
    """Return a 500: the request was right, the engine failed."""
    return ApiError(500, message, kind="server_error", code="internal_error")


def from_engine(error: EngineError, spelling: Mapping[str, str]) -> ApiError:
    """Turn what the engine raises for a request into an answer.

    Args:
        error: what was raised.
        spelling: the client's names of parameters that the engine calls differently.
    """
    match error:
        case QueueFullError():
            return unavailable(str(error), "queue_full")
        case EngineDeadError():
            return unavailable(str(error), "engine_dead")
        case RequestError():
            return _refusal(str(error), error.param, spelling)
    return server_error(str(error))


def _refusal(message: str, param: str | None, spelling: Mapping[str, str]) -> ApiError:
    if param is not None and param in spelling:
        if message.startswith(param):
            message = spelling[param] + message.removeprefix(param)
        param = spelling[param]
    code = "context_length_exceeded" if _OVERFLOW in message else "invalid_value"
    return ApiError(400, message, param=param, code=code)
