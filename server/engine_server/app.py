"""Puts the application together."""

from __future__ import annotations

from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from engine_server.chat import chat_routes
from engine_server.chat_request import ChatCompletionRequest
from engine_server.completion_request import CompletionRequest
from engine_server.completions import completion_routes
from engine_server.embeddings import EmbeddingRequest, embedding_routes
from engine_server.errors import ApiError, ClientGoneError, server_error
from engine_server.messages import messages_routes
from engine_server.messages_request import CountTokensRequest, MessagesRequest
from engine_server.middleware import ApiKeys, Observed, Published
from engine_server.model_routes import model_routes
from engine_server.openapi import install_openapi
from engine_server.responses import (
    AnthropicMessage,
    ChatCompletion,
    Completion,
    Embeddings,
    EngineAnswer,
    InputTokens,
    Model,
    ModelList,
    ResponseResource,
    Text,
    TokenizerInfo,
    Tokens,
)
from engine_server.responses_api import responses_routes
from engine_server.responses_request import ResponsesRequest
from engine_server.state import ServerState
from engine_server.status_routes import OPEN_PATHS, status_routes
from engine_server.tokenize_routes import (
    DetokenizeRequest,
    TokenizeRequest,
    tokenize_routes,
)
from engine_server.traces import Traced, make_tracer

_ROUTES = (
    completion_routes,
    chat_routes,
    messages_routes,
    responses_routes,
    embedding_routes,
    model_routes,
    tokenize_routes,
    status_routes,
)
_REQUESTS = (
    CompletionRequest,
    ChatCompletionRequest,
    MessagesRequest,
    CountTokensRequest,
    ResponsesRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_ANSWERS = (
    Completion,
    ChatCompletion,
    AnthropicMessage,
    InputTokens,
    ResponseResource,
    Embeddings,
    TokenizerInfo,
    ModelList,
    Model,
    Tokens,
    Text,
    EngineAnswer,
)


def build_app(state: ServerState) -> ASGIApp:
    """Return the ASGI application.

    Args:
        state: shared by all routes.
    """
    app = FastAPI(
        title="Engine",
        version=state.version,
        redoc_url=None,
        redirect_slashes=False,
    )
    for routes in _ROUTES:
        app.include_router(routes(state))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failure)
    install_openapi(app, _REQUESTS, _ANSWERS)
    return _wrap(app, state)


def _wrap(app: ASGIApp, state: ServerState) -> ASGIApp:
    """Put the middleware around: outermost is what sees every request."""
    config = state.config
    if config.api_key:
        app = ApiKeys(app, config.api_key, OPEN_PATHS, config.root_path)
    if config.allowed_origins:
        app = CORSMiddleware(
            app, allow_origins=config.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
    if config.root_path:
        app = Published(app, config.root_path)
    app = Observed(app, state)
    if config.otlp_traces_endpoint is not None:
        app = Traced(app, make_tracer(config.otlp_traces_endpoint, state.version))
    return app


async def _api_error(_request: Request, error: Exception) -> Response:
    return cast("ApiError", error).response()


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)


async def _http_error(request: Request, raised: Exception) -> Response:
    """Answer for an unknown path or a wrong method."""
    error = cast("HTTPException", raised)
    method, path = request.method, request.url.path
    if error.status_code == 404:
        message, code = f"Invalid URL ({method} {path})", "unknown_url"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"Not allowed to {method} {path}; allowed: {allowed}", "method_not_allowed"
    else:
        message, code = str(error.detail), None
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()


async def _failure(_request: Request, _error: Exception) -> Response:
    """Answer for a fault of ours; Starlette raises it again and uvicorn logs it."""
    return server_error("the server failed; its log says why").response()
