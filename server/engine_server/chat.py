"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import cast

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.request import CompletionOutput, RequestOutput
from engine_server import sse
from engine_server.chat_request import ChatCompletionRequest
from engine_server.chat_template import render_chat
from engine_server.chunks import ChoiceState, ChunkWriter
from engine_server.gathering import Choice, Prompt
from engine_server.job import Job, new_id
from engine_server.logprobs import chat_logprobs, prompt_logprobs
from engine_server.openapi import describe
from engine_server.request_body import read_body
from engine_server.respond import respond
from engine_server.responses import ChatChoice, ChatCompletion, ChatMessage, PromptLogprobs
from engine_server.state import ServerState
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
        job = Job(
            kind="chat.completion.chunk" if body.stream else "chat.completion",
            id=new_id("chatcmpl"),
            model=serving.name(body.model),
            serving=serving,
            body=body,
            params=body.sampling(),
            prompts=[render_chat(serving.engine.tokenizer, body.messages, body)],
            spelling=body.spelling,
        )
        return await respond(request, state.metrics, job, whole=_whole, writer=_ChatChunks)

    return router


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
    return ChatChoice(
        index=index,
        message=ChatMessage("assistant", choice.text),
        logprobs=None
        if count is None
        else chat_logprobs(choice.logprobs, count, job.serving.tokens),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if job.body.return_token_ids else msgspec.UNSET,
    )


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
