"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.tool_parsers import CallDelta, Delta
from engine_server import sse
from engine_server.answer import Answer, answer_job
from engine_server.chat import chat_job
from engine_server.errors import ApiError
from engine_server.messages_request import SPELLING, CountTokensRequest, MessagesRequest
from engine_server.openapi import describe
from engine_server.request_body import read_body
from engine_server.responses import AnthropicMessage, AnthropicUsage, InputTokens, Usage
from engine_server.state import ServerState
from engine_server.tools import Call, Said

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def messages_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.post("/v1/messages", **describe(MessagesRequest, AnthropicMessage, stream=True))
    @_own_errors
    async def create_message(request: Request) -> Response:
        """Answer a conversation (Anthropic's API)."""
        serving = state.require()
        body = await read_body(request, MessagesRequest, state.config.max_body_size)
        chat = body.to_chat()
        chat.check()
        job = await chat_job(state, serving, chat, kind="message", prefix="msg", spelling=SPELLING)
        return await answer_job(
            request, state.metrics, job, whole=_whole, events=_events, failed=_failed
        )

    @router.post("/v1/messages/count_tokens", **describe(CountTokensRequest, InputTokens))
    @_own_errors
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a conversation (Anthropic's API)."""
        serving = state.require()
        body = await read_body(request, CountTokensRequest, state.config.max_body_size)
        chat = body.chat()
        chat.check()
        job = await chat_job(state, serving, chat, kind="message", prefix="msg")
        answer = msgspec.json.encode(InputTokens(len(job.prompts[0])))
        return Response(answer, media_type="application/json")

    return router


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def _own_errors(handler: Handler) -> Handler:
    """Add what Anthropic's clients look for in an error."""

    @wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return error.response(type="error")

    return handle


def _stop(answer: Answer) -> tuple[str, str | None]:
    if isinstance(answer.stop_reason, str) and answer.finish_reason == "stop":
        return "stop_sequence", answer.stop_reason
    return _STOP_REASONS[answer.finish_reason or "stop"], None


def _usage(usage: Usage) -> AnthropicUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return AnthropicUsage(
        input_tokens=usage.prompt_tokens - cached,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=cached,
        cache_creation_input_tokens=0,
    )


def _whole(answer: Answer) -> msgspec.Struct:
    reason, sequence = _stop(answer)
    content = [block for part in answer.parts if (block := _block(part)) is not None]
    return AnthropicMessage(
        id=answer.job.id,
        type="message",
        role="assistant",
        model=answer.job.model,
        content=content or [_text_block("")],
        stop_reason=reason,
        stop_sequence=sequence,
        usage=_usage(answer.usage),
    )


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _block(part: Said | Call) -> dict[str, Any] | None:
    if isinstance(part, Said):
        return _text_block(part.text)
    try:
        arguments = json.loads(part.arguments or "{}")
    except ValueError:  # cut off by max_tokens, which the stop reason tells
        return None
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\n" % kind.encode() + sse.event(sse.encode({"type": kind, **fields}))


def _failed(_answer: Answer, error: ApiError) -> bytes:
    return b"event: error\n" + sse.event(error.body(type="error"))


async def _events(answer: Answer) -> AsyncIterator[bytes]:
    message = AnthropicMessage(
        id=answer.job.id,
        type="message",
        role="assistant",
        model=answer.job.model,
        content=[],
        stop_reason=None,
        stop_sequence=None,
        usage=_usage(answer.usage),
    )
    yield _event("message_start", message=message)
    blocks = _Blocks(answer)
    async for deltas in answer.deltas():
        if frames := b"".join(blocks.write(delta) for delta in deltas):
            yield frames
    reason, sequence = _stop(answer)
    usage = _usage(answer.usage)
    yield blocks.end() + _event(
        "message_delta", delta={"stop_reason": reason, "stop_sequence": sequence}, usage=usage
    )
    yield _event("message_stop")


class _Blocks:
    """Writes a stream's blocks: one for each stretch of text and for each call."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._index = -1
        self._open: str | int | None = None

    def write(self, delta: Delta) -> bytes:
        frames = b""
        if isinstance(delta, CallDelta):
            if self._open != delta.index:
                call = self._answer.calls[delta.index]
                block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                frames = self._begin(delta.index, block)
            if delta.arguments:
                frames += self._delta({"type": "input_json_delta", "partial_json": delta.arguments})
            return frames
        if self._open != "text":
            frames = self._begin("text", _text_block(""))
        return frames + self._delta({"type": "text_delta", "text": delta.text})

    def _begin(self, what: str | int, block: dict[str, Any]) -> bytes:
        frames = self.end()
        self._open, self._index = what, self._index + 1
        return frames + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, str]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def end(self) -> bytes:
        """Close the block that is open."""
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", index=self._index)
