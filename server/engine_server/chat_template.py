"""From a conversation to the prompt that the model was trained on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from engine_server.chat_request import TemplateFields
from engine_server.request_fields import invalid
from engine_server.state import Serving


@dataclass(frozen=True)
class Conversation:
    """What is rendered.

    Attributes:
        messages: as chat templates read them.
        fields: how they become a prompt.
        tools: what is declared to the model.
        effort: `reasoning_effort`, if it was asked for.
    """

    messages: list[dict[str, Any]]
    fields: TemplateFields
    tools: list[dict[str, Any]] | None = None
    effort: str | None = None


async def chat_prompt(serving: Serving, conversation: Conversation, *, trusted: bool) -> list[int]:
    """Return the prompt's token ids; long conversations are rendered on a thread.

    Args:
        serving: what is served.
        conversation: what is rendered.
        trusted: whether the client may bring a template.

    Raises:
        ApiError: there is no chat template, or it refuses the conversation.
    """
    if conversation.fields.chat_template is not None and not trusted:
        raise invalid(
            "chat_template", "only allowed when the server runs with --trust-request-chat-template"
        )
    size = sum(len(str(message["content"])) for message in conversation.messages)
    return await serving.engine.run_with_tokenizer(
        lambda tokenizer: render_chat(tokenizer, conversation), size
    )


def render_chat(tokenizer: Any, conversation: Conversation) -> list[int]:
    """Return the prompt's token ids.

    Args:
        tokenizer: a transformers fast tokenizer, or None.
        conversation: what is rendered.

    Raises:
        ApiError: there is no chat template, or it refuses the conversation.
    """
    fields = conversation.fields
    if tokenizer is None or not (tokenizer.chat_template or fields.chat_template):
        raise invalid("messages", "this model has no chat template; use /v1/completions")
    last = bool(fields.continue_final_message)
    begin = fields.add_generation_prompt
    extra = _extra(tokenizer, conversation)
    try:
        text = tokenizer.apply_chat_template(
            conversation.messages,
            tools=conversation.tools,
            chat_template=fields.chat_template,
            tokenize=False,
            add_generation_prompt=not last if begin is None else begin,
            continue_final_message=last,
            **extra,
        )
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise invalid("messages", f"the model's chat template refuses them: {error}") from error
    # The template writes the special tokens itself.
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _extra(tokenizer: Any, conversation: Conversation) -> dict[str, Any]:
    """Return the template's variables; what it doesn't read would do nothing, silently."""
    fields = conversation.fields
    try:
        template = tokenizer.get_chat_template(fields.chat_template, tools=conversation.tools)
        read = _variables(str(template))
    except TemplateError as error:
        raise invalid("chat_template", f"can't be read: {error}") from error
    if conversation.tools and "tools" not in read:
        raise invalid("tools", "the model's chat template doesn't read them")
    read = read - _reserved(tokenizer.apply_chat_template.__func__)
    extra = dict(fields.chat_template_kwargs or {})
    names = {name: f"chat_template_kwargs.{name}" for name in extra}
    if conversation.effort is not None:
        extra["reasoning_effort"] = conversation.effort
        names["reasoning_effort"] = "reasoning_effort"
    for name, param in names.items():
        if name not in read:
            known = f"it reads {', '.join(sorted(read))}" if read else "it reads none"
            raise invalid(param, f"the model's chat template doesn't read it; {known}")
    return extra


class _Generation(Extension):
    """Reads the block with which templates mark what the assistant said."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache
def _variables(template: str) -> frozenset[str]:
    """Return what a template reads from outside."""
    environment = Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"])  # noqa: S701  (nothing is rendered)
    names = meta.find_undeclared_variables(environment.parse(template))
    own = {*environment.globals, "raise_exception", "strftime_now"}
    return frozenset(names - own)


@lru_cache
def _reserved(renderer: Callable[..., Any]) -> frozenset[str]:
    """Return what the renderer fills in itself."""
    own = inspect.signature(renderer).parameters
    return frozenset(own) | {"messages", "bos_token", "eos_token", "pad_token", "unk_token"}
