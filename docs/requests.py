"""Writes tables of what a request may hold, from the models that check it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine_server.chat_request import ChatCompletionRequest
from engine_server.completion_request import CompletionRequest
from engine_server.embeddings import EmbeddingRequest
from engine_server.field_rules import Refused
from engine_server.messages_request import MessagesRequest
from engine_server.responses_request import ResponsesRequest

REQUESTS: dict[str, Sequence[type[BaseModel]]] = {
    "/v1/completions and /v1/chat/completions": (CompletionRequest, ChatCompletionRequest),
    "/v1/responses": (ResponsesRequest,),
    "/v1/messages": (MessagesRequest,),
    "/v1/embeddings": (EmbeddingRequest,),
}
_NOTHING = "accepted without effect"


def requests() -> str:
    """Return a table for each endpoint that takes more than a few parameters."""
    return "\n".join(_section(title, models) for title, models in REQUESTS.items())


def _section(title: str, models: Sequence[type[BaseModel]]) -> str:
    several = len(models) > 1
    lines = [f"### {title}\n", "| parameter | meaning |", "| --- | --- |"]
    silent = []
    for name, field, where in _fields(models):
        meaning = meaning_of(field)
        if meaning == _NOTHING:
            silent.append(f"`{name}`")
            continue
        label = f"`{name}`{f' ({where})' if several and where else ''}"
        lines.append(f"| {label} | {meaning.replace('|', chr(92) + '|')} |")
    if silent:
        lines.append(f"\nAccepted without effect, whatever they hold: {', '.join(silent)}.")
    return "\n".join([*lines, ""])


def _fields(models: Sequence[type[BaseModel]]) -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield each field once, with the endpoint that alone has it."""
    labels = {CompletionRequest: "completions", ChatCompletionRequest: "chat"}
    for model in models:
        for key, field in model.model_fields.items():
            everywhere = all(
                key in other.model_fields
                and meaning_of(other.model_fields[key]) == meaning_of(field)
                for other in models
            )
            if everywhere and model is not models[0]:
                continue
            yield field.alias or key, field, "" if everywhere else labels.get(model, "")


def meaning_of(field: FieldInfo) -> str:
    """Return what a field means, or that it means nothing."""
    for rule in field.metadata:
        if isinstance(rule, Refused):
            allowed = ["null", *(json.dumps(value) for value in rule.harmless)]
            return f"Refused: {rule.why}. Allowed: {', '.join(f'`{a}`' for a in allowed)}."
    text = " ".join((field.description or "").split())
    if field.annotation is Any and (not text or "without effect" in text):
        return _NOTHING
    return text
