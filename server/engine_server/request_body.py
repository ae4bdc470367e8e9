"""Reads a JSON body into a typed request; whatever is wrong becomes one sentence."""

from __future__ import annotations

import difflib
import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from engine_server.errors import ApiError, ClientGoneError

BodyT = TypeVar("BodyT", bound="Body")

TAG = "<"
"""First letter of the names of alternatives in a union; they are no part of a field's path."""

_SHOWN = 60
_SENTENCES = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_from_float": "must be an integer",
    "int_type": "must be an integer",
    "list_type": "must be an array",
    "model_type": "must be an object",
    "string_type": "must be a string",
    "missing": "is required",
}
_CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "unsupported": "unsupported_parameter",
}


class Body(BaseModel):
    """Base of every request: nothing is converted, nothing unknown is let through."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


async def read_body(request: Request, model: type[BodyT], limit: int) -> BodyT:
    """Read and check a request's body.

    Args:
        request: nothing of its body has been read.
        model: what it must be.
        limit: most bytes to take.

    Raises:
        ApiError: it is too large, no JSON, or not what the model says.
        ClientGoneError: the client left while it was sending.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            400,
            f"Content-Type: {media_type or 'none'}: must be application/json",
            code="unsupported_content_type",
        )
    data = await _read(request, limit)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _refusal(error, model) from None


async def _read(request: Request, limit: int) -> bytes:
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > limit:
                raise ApiError(
                    413,
                    f"the body is larger than {limit} bytes (--max-body-size)",
                    code="body_too_large",
                    headers={"Connection": "close"},
                )
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(data)


def _refusal(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """Say what is wrong with the first field that is."""
    problem = error.errors(include_url=False, include_context=True)[0]
    kind = problem["type"]
    if kind == "json_invalid":
        reason = str(problem["ctx"]["error"])
        return ApiError(400, f"the body isn't valid JSON: {reason}", code="invalid_json")
    path = _path(problem["loc"])
    code = _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    return ApiError(400, _sentence(path, problem, model), param=path or None, code=code)


def _sentence(path: str, problem: Any, model: type[BaseModel]) -> str:
    kind = problem["type"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(path, model.model_fields, n=1, cutoff=0.75)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{_short(path)}: no such parameter{hint}"
    if kind == "missing":
        return f"{path}: is required"
    message = str(problem["msg"])
    if kind == "unsupported" or not path:
        return ": ".join(filter(None, [path, _SENTENCES.get(kind, message)]))
    # pydantic's own sentences begin with this; the ones written here don't.
    message = message.replace("Input should be", "must be").removeprefix("Value error, ")
    return f"{path}={shown(problem['input'])}: {_SENTENCES.get(kind, message)}"


def _path(location: tuple[int | str, ...]) -> str:
    """Write a field's path as OpenAI does: `messages[0].content`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part == "[key]" or part.startswith(TAG):
            continue
        else:
            path += f".{part}" if path else part
    return path


def shown(value: object) -> str:
    """Return a value as JSON, short enough for a sentence."""
    try:
        return _short(json.dumps(value, ensure_ascii=False))
    except ValueError:  # an integer with thousands of digits
        return "a number too long to show"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
