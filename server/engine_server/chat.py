"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.request import CompletionOutput, RequestOutput
from engine.tool_parsers import Delta, TextDelta
from engine_server import sse
from engine_server.chat_request import ChatCompletionRequest
from engine_server.chat_template import Conversation, chat_prompt
from engine_server.chunks import ChoiceState, ChunkWriter
from engine_server.gathering import Choice, Prompt
from engine_server.job import Job, new_id
from engine_server.logprobs import chat_logprobs, prompt_logprobs
from engine_server.openapi import describe
from engine_server.request_body import read_body
from engine_server.respond import respond
from engine_server.responses import (
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    PromptLogprobs,
    ToolCall,
)
from engine_server.state import ServerState, Serving
from engine_server.tools import CallRelay, ToolUse, tool_use
from engine_server.usage import UsageCount


def chat_routes(state: ServerState) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions", **describe(ChatCompletionRequest, ChatCompletion, stream=True)
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        serving = state.require()
        body = await read_body(request, ChatCompletionRequest, state.config.max_body_size)
        body.check()
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        job = await chat_job(state, serving, body, kind=kind, prefix="chatcmpl")
        writer = _ChatChunks if job.tools is None else _ToolChunks
        return await respond(request, state.metrics, job, whole=_whole, writer=writer)

    return router


async def chat_job(
    state: ServerState,
    serving: Serving,
    body: ChatCompletionRequest,
    *,
    kind: str,
    prefix: str,
    spelling: Mapping[str, str] | None = None,
) -> Job:
    """Return a checked conversation as a job, its prompt rendered.

    Args:
        state: the server's.
        serving: what is served.
        body: the conversation.
        kind: OpenAI's name of the answer.
        prefix: what the answer's id begins with.
        spelling: the client's names of this body's fields, where they differ.

    Raises:
        ApiError: it can't be answered; names the field.
    """
    tools = tool_use(body, serving.tool_parser)
    params, names = body.sampling(tools, spelling or {})
    conversation = Conversation(
        [message.for_template(f"messages[{i}]") for i, message in enumerate(body.messages)],
        body,
        None if tools is None else tools.declared,
        body.reasoning_effort,
    )
    trusted = state.config.trust_request_chat_template
    return Job(
        kind=kind,
        id=new_id(prefix),
        model=serving.name(body.model),
        serving=serving,
        body=body,
        params=params,
        prompts=[await chat_prompt(serving, conversation, trusted=trusted)],
        spelling=names,
        tools=tools,
        timeout=state.config.request_timeout,
    )


def _whole(job: Job, prompts: list[Prompt], usage: UsageCount) -> msgspec.Struct:
    body, tokens, unset = job.body, job.serving.tokens, msgspec.UNSET
    prompt = prompts[0]
    of_prompt: PromptLogprobs | msgspec.UnsetType = unset
    if body.prompt_logprobs is not None and prompt.logprobs is not None:
        of_prompt = prompt_logprobs(prompt.logprobs, body.prompt_logprobs, tokens)
    return ChatCompletion(
        id=job.id,
        object=job.kind,
        created=job.created,
        model=job.model,
        system_fingerprint=job.serving.fingerprint,
        choices=[_choice(job, index, choice) for index, choice in enumerate(prompt.choices)],
        usage=usage.usage(),
        prompt_logprobs=of_prompt,
        prompt_token_ids=prompt.token_ids if body.return_token_ids else unset,
    )


def _choice(job: Job, index: int, choice: Choice) -> ChatChoice:
    count = job.params.logprobs
    message, reason = ChatMessage("assistant", choice.text), choice.finish_reason
    if job.tools is not None:
        relay = job.tools.relay()
        relay.push(choice.text)
        relay.finish()
        message, reason = _message(relay), relay.reason(reason)
    return ChatChoice(
        index=index,
        message=message,
        logprobs=None
        if count is None
        else chat_logprobs(choice.logprobs, count, job.serving.tokens),
        finish_reason=reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if job.body.return_token_ids else msgspec.UNSET,
    )


def _message(relay: CallRelay) -> ChatMessage:
    if not relay.calls:
        return ChatMessage("assistant", relay.text)
    calls = [
        ToolCall(id=call.id, function=CalledFunction(call.name, call.arguments))
        for call in relay.calls
    ]
    return ChatMessage("assistant", relay.text or None, tool_calls=calls)


class _ChatChunks(ChunkWriter):
    BEFORE_TEXT = b'"delta":{"content":'
    AFTER_TEXT = b"}"

    def opening(self, choice: ChoiceState, output: RequestOutput) -> bytes:
        """Return the chunk that says who speaks."""
        more = b',"finish_reason":null'
        if self._job.body.return_token_ids:
            more += b',"token_ids":[],"prompt_token_ids":' + sse.encode(output.prompt_token_ids)
        return self.chunk(choice, b'"delta":{"role":"assistant","content":""}', b"null", more)

    def logprobs(self, choice: ChoiceState, new: CompletionOutput) -> bytes:
        """Return the log-probabilities of the new tokens."""
        count = cast("int", self._job.params.logprobs)
        return sse.encode(chat_logprobs(new.logprobs or [], count, self._tokens))

    def place(self, text: str) -> bytes:
        """Return the text; an empty delta when there is none."""
        if not text:
            return b'"delta":{}'
        return self.BEFORE_TEXT + sse.encode_text(text) + self.AFTER_TEXT


class _ToolChunks(_ChatChunks):
    """Chunks in which calls of tools are told apart from text."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._text_only = False
        self._relays: dict[int, CallRelay] = {}

    def everything(self, choice: ChoiceState, new: CompletionOutput) -> bytes:
        """Return a chunk with what the new text tells; none when all of it is held back."""
        relay = self._relays.get(choice.index)
        if relay is None:
            relay = self._relays[choice.index] = cast("ToolUse", self._job.tools).relay()
        deltas = relay.push(new.text)
        if new.finish_reason is not None:
            deltas += relay.finish()
        self._delta = _delta(deltas, relay)
        new = replace(new, finish_reason=relay.reason(new.finish_reason))
        asked = new.logprobs or (self._job.body.return_token_ids and new.token_ids)
        if not (deltas or asked or new.finish_reason):
            return b""
        return super().everything(choice, new)

    def place(self, text: str) -> bytes:
        """Return what the text told."""
        return b'"delta":' + sse.encode(self._delta)


def _delta(deltas: list[Delta], relay: CallRelay) -> dict[str, Any]:
    """Return one delta of OpenAI's API for several of ours."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for new in deltas:
        if isinstance(new, TextDelta):
            delta["content"] = delta.get("content", "") + new.text
            continue
        call = calls.setdefault(new.index, {"index": new.index, "function": {"arguments": ""}})
        call["function"]["arguments"] += new.arguments
        if new.name is not None:
            call |= {"id": relay.calls[new.index].id, "type": "function"}
            call["function"]["name"] = new.name
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta
