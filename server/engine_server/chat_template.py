"""From a conversation to the prompt that the model was trained on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from engine_server.chat_request import Message, TemplateFields
from engine_server.request_fields import invalid


def render_chat(tokenizer: Any, messages: list[Message], fields: TemplateFields) -> list[int]:
    """Return the prompt's token ids.

    Args:
        tokenizer: a transformers fast tokenizer, or None.
        messages: the conversation.
        fields: how it becomes a prompt.

    Raises:
        ApiError: the model has no chat template, or the template refuses the conversation.
    """
    if tokenizer is None or not tokenizer.chat_template:
        raise invalid("messages", "this model has no chat template; use /v1/completions")
    extra = fields.chat_template_kwargs or {}
    _check_extra(tokenizer, extra)
    last = bool(fields.continue_final_message)
    begin = fields.add_generation_prompt
    try:
        text = tokenizer.apply_chat_template(
            [message.for_template() for message in messages],
            tokenize=False,
            add_generation_prompt=not last if begin is None else begin,
            continue_final_message=last,
            **extra,
        )
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise invalid("messages", f"the model's chat template refuses them: {error}") from error
    # The template writes the special tokens itself.
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _check_extra(tokenizer: Any, extra: dict[str, Any]) -> None:
    """Refuse variables that the template doesn't read: they would do nothing, silently."""
    if not extra:
        return
    read = _variables(str(tokenizer.get_chat_template())) - _reserved(
        tokenizer.apply_chat_template.__func__
    )
    for name in extra:
        if name not in read:
            param = f"chat_template_kwargs.{name}"
            known = f"it reads {', '.join(sorted(read))}" if read else "it reads none"
            raise invalid(param, f"the model's chat template doesn't read it; {known}")


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
    return frozenset(names) - environment.globals.keys() - {"raise_exception", "strftime_now"}


@lru_cache
def _reserved(renderer: Callable[..., Any]) -> frozenset[str]:
    """Return what the renderer fills in itself."""
    own = inspect.signature(renderer).parameters
    return frozenset(own) | {"messages", "bos_token", "eos_token", "pad_token", "unk_token"}
