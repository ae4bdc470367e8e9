"""POST /v1/completions."""

from __future__ import annotations

from typing import cast

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from engine.request import CompletionOutput, PositionLogprobs, RequestOutput
from engine_server import sse
from engine_server.chunks import ChoiceState, ChunkWriter
from engine_server.completion_request import CompletionRequest
from engine_server.gathering import Choice, Prompt
from engine_server.job import Job, new_id
from engine_server.logprobs import CompletionLogprobsWriter, prompt_logprobs
from engine_server.openapi import describe
from engine_server.request_body import read_body
from engine_server.request_fields import invalid
from engine_server.respond import respond
from engine_server.responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
)
from engine_server.state import ServerState
from engine_server.usage import UsageCount

_KIND = "text_completion"


def completion_routes(state: ServerState) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.post("/v1/completions", **describe(CompletionRequest, Completion, stream=True))
    async def create_completion(request: Request) -> Response:
        """Continue prompts."""
        serving = state.require()
        body = await read_body(request, CompletionRequest, state.config.max_body_size)
        body.check()
        if body.echo and serving.engine.tokenizer is None:
            raise invalid("echo", "this model is served without a tokenizer")
        params, spelling = body.sampling()
        job = Job(
            kind=_KIND,
            id=new_id("cmpl"),
            model=serving.name(body.model),
            serving=serving,
            body=body,
            prompts=body.prompts(),
            params=params,
            spelling=spelling,
            timeout=state.config.request_timeout,
        )
        return await respond(request, state.metrics, job, whole=_whole, writer=_CompletionChunks)

    return router


def _whole(job: Job, prompts: list[Prompt], usage: UsageCount) -> msgspec.Struct:
    choices = [
        _choice(job, index * job.params.n + number, prompt, choice)
        for index, prompt in enumerate(prompts)
        for number, choice in enumerate(prompt.choices)
    ]
    return Completion(
        id=job.id,
        object=job.kind,
        created=job.created,
        model=job.model,
        system_fingerprint=job.serving.fingerprint,
        choices=choices,
        usage=usage.usage(),
    )


def _choice(job: Job, index: int, prompt: Prompt, choice: Choice) -> CompletionChoice:
    body = cast("CompletionRequest", job.body)
    tokens, unset = job.serving.tokens, msgspec.UNSET
    text, ids = choice.text, choice.token_ids
    known: list[PositionLogprobs | None] = [*choice.logprobs]
    if body.echo:
        text = _prompt_text(job, prompt.text, prompt.token_ids) + text
        ids = prompt.token_ids + ids
        known = [*(prompt.logprobs or []), *known]
    logprobs: CompletionLogprobs | None = None
    if body.logprobs is not None:
        logprobs = CompletionLogprobsWriter(tokens, body.logprobs).write(ids, known)
    of_prompt: PromptLogprobs | msgspec.UnsetType = unset
    if body.prompt_logprobs is not None and prompt.logprobs is not None:
        of_prompt = prompt_logprobs(prompt.logprobs, body.prompt_logprobs, tokens)
    return CompletionChoice(
        index=index,
        text=text,
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        prompt_logprobs=of_prompt,
        token_ids=choice.token_ids if body.return_token_ids else unset,
        prompt_token_ids=prompt.token_ids if body.return_token_ids else unset,
    )


def _prompt_text(job: Job, text: str | None, token_ids: list[int]) -> str:
    return job.serving.tokens.join(token_ids) if text is None else text


class _CompletionChunks(ChunkWriter):
    BEFORE_TEXT = b'"text":'
    AFTER_TEXT = b""

    def opening(self, choice: ChoiceState, output: RequestOutput) -> bytes:
        """Return the echoed prompt, its log-probabilities and its token ids, as asked for."""
        body = cast("CompletionRequest", self._job.body)
        logprobs = b"null"
        if body.logprobs is not None:
            choice.logprobs = CompletionLogprobsWriter(self._tokens, body.logprobs)
            if body.echo:
                entries = output.prompt_logprobs or []
                written = choice.logprobs.write(output.prompt_token_ids, entries)
                logprobs = sse.encode(written)
        if not (body.echo or body.return_token_ids):
            return b""
        text = _prompt_text(self._job, output.prompt, output.prompt_token_ids) if body.echo else ""
        more = b',"finish_reason":null'
        if body.return_token_ids:
            more += b',"token_ids":[],"prompt_token_ids":' + sse.encode(output.prompt_token_ids)
        return self.chunk(choice, self.place(text), logprobs, more)

    def logprobs(self, choice: ChoiceState, new: CompletionOutput) -> bytes:
        """Return the log-probabilities of the new tokens."""
        writer = cast("CompletionLogprobsWriter", choice.logprobs)
        return sse.encode(writer.write(new.token_ids, new.logprobs or []))

    def place(self, text: str) -> bytes:
        """Return the text."""
        return self.BEFORE_TEXT + sse.encode_text(text)
