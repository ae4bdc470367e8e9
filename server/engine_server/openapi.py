"""Describes requests and answers in /openapi.json.

Bodies are read by `read_body` and answers are encoded by msgspec, so FastAPI is told their
schemas instead of finding them in signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from engine_server.responses import ErrorAnswer

_REF = "#/components/schemas/{}"


def describe(
    request: type[BaseModel] | None, answer: type[msgspec.Struct], *, stream: bool = False
) -> dict[str, Any]:
    """Return the arguments of a route that document it.

    Args:
        request: the body; None when there is none.
        answer: the 200.
        stream: the answer may also come as server-sent events.
    """
    content: dict[str, Any] = {"application/json": {"schema": _reference(answer)}}
    if stream:
        content["text/event-stream"] = {"schema": {"description": "One event after the other."}}
    described: dict[str, Any] = {
        "response_model": None,
        "responses": {
            200: {"description": "Done.", "content": content},
            "default": {
                "description": "What went wrong.",
                "content": {"application/json": {"schema": _reference(ErrorAnswer)}},
            },
        },
    }
    if request is not None:
        body = {"application/json": {"schema": _reference(request)}}
        described["openapi_extra"] = {"requestBody": {"required": True, "content": body}}
    return described


def install_openapi(
    app: FastAPI, requests: Sequence[type[BaseModel]], answers: Sequence[type[msgspec.Struct]]
) -> None:
    """Make the application describe the types that its routes were declared with.

    Args:
        app: has all its routes.
        requests: every body.
        answers: every answer.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schema["components"] = {"schemas": _schemas(requests, answers)}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _schemas(
    requests: Sequence[type[BaseModel]], answers: Sequence[type[msgspec.Struct]]
) -> dict[str, Any]:
    _, definitions = models_json_schema(
        [(model, "validation") for model in requests], ref_template=_REF.format("{model}")
    )
    _, components = msgspec.json.schema_components(
        [*answers, ErrorAnswer], ref_template=_REF.format("{name}")
    )
    return {**definitions["$defs"], **components}


def _reference(model: type) -> dict[str, str]:
    return {"$ref": _REF.format(model.__name__)}
