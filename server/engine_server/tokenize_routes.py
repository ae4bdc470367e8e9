"""POST /tokenize and /detokenize, GET /tokenizer_info."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from engine_server.chat_request import Messages, TemplateFields
from engine_server.chat_template import Conversation, chat_prompt
from engine_server.openapi import describe
from engine_server.request_body import Body, read_body
from engine_server.request_fields import invalid
from engine_server.responses import Text, TokenizerInfo, Tokens
from engine_server.state import ServerState, Serving

_SPECIAL = ("bos", "eos", "pad", "unk")


class TokenizeRequest(TemplateFields):
    """A text, or a conversation, to be turned into token ids."""

    model: str | None = None
    """Name of the model; the one that is served when omitted."""
    prompt: str | None = None
    """The text."""
    messages: Messages | None = None
    """A conversation, instead of a text."""
    add_special_tokens: bool | None = None
    """Add what the tokenizer puts around a text; a conversation's template does it itself."""
    return_token_strs: bool | None = None
    """Return the text of each token too."""

    def check(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        self.check_template()
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "give either prompt or messages")
        for index, message in enumerate(self.messages or ()):
            message.check(f"messages[{index}]")
        for name in TemplateFields.model_fields:
            if self.messages is None and getattr(self, name) is not None:
                raise invalid(name, "only allowed with messages")
        if self.messages is not None and self.add_special_tokens is not None:
            raise invalid("add_special_tokens", "only allowed with prompt")


class DetokenizeRequest(Body):
    """Token ids to be turned into text."""

    model: str | None = None
    """Name of the model; the one that is served when omitted."""
    tokens: list[Annotated[int, Field(ge=0)]]
    """The ids."""


def tokenize_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.post("/tokenize", **describe(TokenizeRequest, Tokens))
    async def tokenize(request: Request) -> Response:
        """Turn a text or a conversation into token ids."""
        serving = state.require()
        body = await read_body(request, TokenizeRequest, state.config.max_body_size)
        body.check()
        serving.name(body.model)
        _tokenizer(serving, "prompt" if body.messages is None else "messages")
        if body.messages is not None:
            conversation = Conversation(
                [m.for_template(f"messages[{i}]") for i, m in enumerate(body.messages)], body
            )
            trusted = state.config.trust_request_chat_template
            ids = await chat_prompt(serving, conversation, trusted=trusted)
        else:
            text, special = body.prompt or "", body.add_special_tokens is not False
            ids = await serving.engine.run_with_tokenizer(
                lambda tokenizer: list(tokenizer(text, add_special_tokens=special).input_ids),
                len(text),
            )
        texts = [serving.tokens.text(i) for i in ids] if body.return_token_strs else None
        return _json(
            Tokens(
                count=len(ids),
                max_model_len=serving.engine.max_model_len,
                tokens=ids,
                token_strs=texts,
            )
        )

    @router.post("/detokenize", **describe(DetokenizeRequest, Text))
    async def detokenize(request: Request) -> Response:
        """Turn token ids into text."""
        serving = state.require()
        body = await read_body(request, DetokenizeRequest, state.config.max_body_size)
        serving.name(body.model)
        size = len(_tokenizer(serving, "tokens"))
        for index, token in enumerate(body.tokens):
            if token >= size:
                raise invalid(f"tokens[{index}]", f"the tokenizer has {size} tokens")
        return _json(Text(serving.tokens.join(body.tokens)))

    @router.get("/tokenizer_info", **describe(None, TokenizerInfo))
    async def tokenizer_info() -> Response:
        """Tell what a client needs to know to tokenize as the server does."""
        serving = state.require()
        tokenizer = _tokenizer(serving, "tokenizer")
        special = {f"{name}_token": getattr(tokenizer, f"{name}_token") for name in _SPECIAL}
        return _json(
            TokenizerInfo(
                tokenizer_class=type(tokenizer).__name__,
                vocab_size=len(tokenizer),
                model_max_length=serving.engine.max_model_len,
                chat_template=tokenizer.chat_template,
                **special,
            )
        )

    return router


def _tokenizer(serving: Serving, param: str) -> Any:
    if serving.engine.tokenizer is None:
        raise invalid(param, "this model is served without a tokenizer")
    return serving.engine.tokenizer


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
