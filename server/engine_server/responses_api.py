"""POST /v1/responses: Open Responses (2026-04-24); text, tools and streams, nothing stored."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.tool_parsers import CallDelta, Delta
from engine_server import sse
from engine_server.answer import Answer, answer_job
from engine_server.chat import chat_job
from engine_server.errors import ApiError
from engine_server.job import new_id
from engine_server.openapi import describe
from engine_server.request_body import read_body
from engine_server.responses import ResponseResource, Usage
from engine_server.responses_request import SPELLING, ResponsesRequest, SchemaFormat, respelled
from engine_server.state import ServerState
from engine_server.tools import Call, Said


def responses_routes(state: ServerState) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.post("/v1/responses", **describe(ResponsesRequest, ResponseResource, stream=True))
    async def create_response(request: Request) -> Response:
        """Answer a conversation (Open Responses)."""
        serving = state.require()
        body = await read_body(request, ResponsesRequest, state.config.max_body_size)
        try:
            chat = body.to_chat()
            chat.check()
            job = await chat_job(
                state, serving, chat, kind="response", prefix="resp", spelling=SPELLING
            )
        except ApiError as error:
            raise respelled(error) from None
        stream = _Stream(body)
        return await answer_job(
            request,
            state.metrics,
            job,
            whole=partial(_whole, body),
            events=stream.events,
            failed=stream.failed,
        )

    return router


def _whole(body: ResponsesRequest, answer: Answer) -> dict[str, object]:
    status = _status(answer)
    return _resource(body, answer, status, _Items(answer).finished(status))


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def _resource(
    body: ResponsesRequest,
    answer: Answer,
    status: str,
    output: list[dict[str, Any]],
    error: ApiError | None = None,
) -> dict[str, object]:
    """Return a response as the specification describes it: every key, null where it is unset."""
    params, job = answer.job.params, answer.job
    ended = status in ("completed", "incomplete")
    text = body.text.format if body.text else None
    return {
        "id": job.id,
        "object": "response",
        "created_at": job.created,
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": job.model,
        "previous_response_id": None,
        "instructions": body.instructions,
        "output": output,
        "error": None if error is None else {"code": error.code, "message": error.message},
        "tools": [_tool(tool.model_dump()) for tool in body.tools or ()],
        "tool_choice": _choice(body),
        "truncation": "disabled",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": _format(text)},
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "top_logprobs": 0,
        "temperature": params.temperature,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "usage": _usage(answer.usage) if ended else None,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": body.metadata or {},
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("type", "name", "description", "parameters", "strict")
    return {name: tool[name] for name in names}


def _choice(body: ResponsesRequest) -> Any:
    choice = body.tool_choice or "auto"
    return choice if isinstance(choice, str) else {"type": "function", "name": choice.name}


def _format(asked: Any) -> dict[str, Any]:
    if isinstance(asked, SchemaFormat):
        # The specification's own schema knows only null for `schema` here.
        return {
            "type": "json_schema",
            "name": asked.name,
            "description": asked.description,
            "schema": None,
            "strict": True,
        }
    return {"type": asked.type if asked else "text"}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


class _Items:
    """The items of an answer: a message for each stretch of text, and the calls.

    Args:
        answer: that is being made.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.ids: list[str] = []

    def begin(self, part: Said | Call | None) -> int:
        """Name the next item and return its place."""
        self.ids.append(new_id("fc" if isinstance(part, Call) else "msg"))
        return len(self.ids) - 1

    def item(self, place: int, status: str) -> dict[str, Any]:
        """Return an item; an empty one while it is in progress."""
        parts, begun = self._answer.parts, status != "in_progress"
        part = parts[place] if place < len(parts) else Said("")
        if isinstance(part, Said):
            return {
                "type": "message",
                "id": self.ids[place],
                "status": status,
                "role": "assistant",
                "content": [_output_text(part.text)] if begun else [],
            }
        return {
            "type": "function_call",
            "id": self.ids[place],
            "call_id": part.id,
            "name": part.name,
            "arguments": part.arguments if begun else "",
            "status": status,
        }

    def finished(self, status: str) -> list[dict[str, Any]]:
        """Return all items; only the last one may have been cut."""
        for part in self._answer.parts[len(self.ids) :]:
            self.begin(part)
        if not self.ids:
            self.begin(None)
        last = len(self.ids) - 1
        return [self.item(i, status if i == last else "completed") for i in range(last + 1)]


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class _Stream:
    """Writes the events of one answer, numbered.

    Args:
        body: what was asked.
    """

    def __init__(self, body: ResponsesRequest) -> None:
        self._body = body
        self._number = -1
        self._open: str | int | None = None

    async def events(self, answer: Answer) -> AsyncIterator[bytes]:
        """Yield the events."""
        self._answer, self._items = answer, _Items(answer)
        first = _resource(self._body, answer, "in_progress", [])
        yield self._event("response.created", response=first)
        yield self._event("response.in_progress", response=first)
        async for deltas in answer.deltas():
            if frames := b"".join([self._delta(delta) for delta in deltas]):
                yield frames
        frames = b"" if answer.parts else self._begin("text")
        status = _status(answer)
        frames += self._end(status)
        response = _resource(self._body, answer, status, self._items.finished(status))
        yield frames + self._event(f"response.{status}", response=response) + sse.DONE

    def failed(self, answer: Answer, error: ApiError) -> bytes:
        """Return the events that end a stream which failed."""
        response = _resource(
            self._body, answer, "failed", self._items.finished("incomplete"), error
        )
        told = {"type": error.kind, "code": error.code, "message": error.message, "param": None}
        frames = self._event("response.failed", response=response)
        return frames + self._event("error", error=told) + sse.DONE

    def _event(self, kind: str, **fields: object) -> bytes:
        self._number += 1
        payload = {"type": kind, "sequence_number": self._number, **fields}
        return b"event: %b\n" % kind.encode() + sse.event(sse.encode(payload))

    def _delta(self, delta: Delta) -> bytes:
        if isinstance(delta, CallDelta):
            frames = b"" if self._open == delta.index else self._begin(delta.index)
            if delta.arguments:
                kind = "response.function_call_arguments.delta"
                frames += self._event(kind, **self._where(), delta=delta.arguments)
            return frames
        frames = b"" if self._open == "text" else self._begin("text")
        return frames + self._event(
            "response.output_text.delta",
            **self._where(),
            content_index=0,
            delta=delta.text,
            logprobs=[],
        )

    def _where(self) -> dict[str, Any]:
        place = len(self._items.ids) - 1
        return {"item_id": self._items.ids[place], "output_index": place}

    def _begin(self, what: str | int) -> bytes:
        frames = self._end("completed")
        self._open = what
        place = self._items.begin(None if what == "text" else self._answer.calls[int(what)])
        item = self._items.item(place, "in_progress")
        frames += self._event("response.output_item.added", output_index=place, item=item)
        if what == "text":
            part = _output_text("")
            kind = "response.content_part.added"
            frames += self._event(kind, **self._where(), content_index=0, part=part)
        return frames

    def _end(self, status: str) -> bytes:
        """Return the events that close the item that is open."""
        what, self._open = self._open, None
        if what is None:
            return b""
        where = self._where()
        item = self._items.item(where["output_index"], status)
        if what == "text":
            (part,) = item["content"]
            at = {**where, "content_index": 0}
            frames = self._event(
                "response.output_text.done", **at, text=part["text"], logprobs=[]
            ) + self._event("response.content_part.done", **at, part=part)
        else:
            kind = "response.function_call_arguments.done"
            frames = self._event(kind, **where, arguments=item["arguments"])
        return frames + self._event(
            "response.output_item.done", output_index=where["output_index"], item=item
        )
