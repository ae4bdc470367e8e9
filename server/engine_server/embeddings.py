"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter
from pydantic import Discriminator, Tag
from starlette.requests import Request
from starlette.responses import Response

from engine.sampling_params import SamplingParams
from engine_server.completion_request import PROMPT, prompt_kind
from engine_server.disconnect import while_connected
from engine_server.errors import ApiError
from engine_server.field_rules import Integer, Refused
from engine_server.openapi import describe
from engine_server.request_body import TAG, Body, read_body
from engine_server.request_fields import invalid
from engine_server.responses import Embedding, Embeddings, EmbeddingUsage
from engine_server.results import Results
from engine_server.state import ServerState, Serving

_MOST = 2048
"""Inputs of one request, as in OpenAI's API."""


class EmbeddingRequest(Body):
    """Turn texts into vectors."""

    model: str | None = None
    """Name of the model; the one that is served when omitted."""
    input: Annotated[
        Annotated[str, Tag(f"{TAG}text")]
        | Annotated[list[str], Tag(f"{TAG}texts")]
        | Annotated[list[Integer], Tag(f"{TAG}ids")]
        | Annotated[list[list[Integer]], Tag(f"{TAG}several ids")],
        Discriminator(prompt_kind, custom_error_type="prompt_type", custom_error_message=PROMPT),
    ]
    """Text or token ids, one or several."""
    encoding_format: Literal["float", "base64"] | None = None
    """Vectors as arrays of numbers, or as base64 of little-endian 32-bit floats."""
    dimensions: Annotated[Any, Refused("vectors are never shortened")] = None
    user: Any = None
    """Accepted without effect."""


def embedding_routes(state: ServerState) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.post("/v1/embeddings", **describe(EmbeddingRequest, Embeddings))
    async def create_embeddings(request: Request) -> Response:
        """Turn texts into vectors of length 1."""
        serving = state.require()
        body = await read_body(request, EmbeddingRequest, state.config.max_body_size)
        name = serving.name(body.model)
        pooling = serving.engine.pooling
        if pooling is None:
            raise ApiError(
                400,
                f"model: {name} isn't made for embeddings; to pool its hidden states anyway, "
                "start the server with --pooling mean or --pooling last",
                param="model",
                code="unsupported_model",
            )
        vectors, tokens = await while_connected(request, _embed(state, serving, body, pooling))
        as_text = body.encoding_format == "base64"
        answer = Embeddings(
            object="list",
            data=[
                Embedding("embedding", index, _base64(vector) if as_text else vector)
                for index, vector in enumerate(vectors)
            ],
            model=name,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
        return Response(msgspec.json.encode(answer), media_type="application/json")

    return router


async def _embed(
    state: ServerState, serving: Serving, body: EmbeddingRequest, pooling: str
) -> tuple[list[list[float]], int]:
    """Return the vectors, and how many tokens the inputs have together."""
    given: Any = body.input
    one = isinstance(given, str) or isinstance(given[0], int)
    inputs: list[str | list[int]] = [given] if one else list(given)
    if len(inputs) > _MOST:
        raise invalid("input", f"at most {_MOST} at once, not {len(inputs)}")
    params = SamplingParams(max_tokens=0, pooling=pooling)
    spelling = {"prompt": "input", "max_tokens": "input"}
    timeout = state.config.request_timeout
    results = await Results.start(serving.engine, inputs, params, state.metrics, spelling, timeout)
    vectors: list[list[float]] = [[] for _ in inputs]
    tokens = 0
    async with aclosing(results):
        async for index, output in results:
            if output.finished:
                vectors[index] = output.embedding or []
                tokens += len(output.prompt_token_ids)
    return vectors, tokens


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
