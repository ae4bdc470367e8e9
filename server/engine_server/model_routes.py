"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from engine_server.openapi import describe
from engine_server.responses import Model, ModelList
from engine_server.state import ServerState, Serving


def model_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get("/v1/models", **describe(None, ModelList))
    async def list_models() -> Response:
        """List the names that the model may be called by."""
        serving = state.require()
        models = [_model(serving, name) for name in serving.names]
        return _json(ModelList(object="list", data=models))

    @router.get("/v1/models/{model:path}", **describe(None, Model))
    async def get_model(model: str) -> Response:
        """Tell about one model."""
        serving = state.require()
        return _json(_model(serving, serving.name(model)))

    return router


def _model(serving: Serving, name: str) -> Model:
    return Model(
        id=name,
        object="model",
        created=serving.created,
        owned_by="engine",
        max_model_len=serving.engine.max_model_len,
    )


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
