"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine.sampling_params import SamplingParams
from engine_server.errors import ApiError
from engine_server.field_rules import Integer, Refused
from engine_server.request_body import TAG, Body
from engine_server.request_fields import SamplingFields, invalid, sampling_params
from engine_server.tool_fields import ToolCall, ToolFields, template_calls
from engine_server.tools import ToolUse

_TEXT_ONLY = "only text is supported"


class TextPart(Body):
    """A piece of a message."""

    type: Literal["text"]
    text: str


def _content_kind(value: Any) -> str | None:
    kinds: dict[object, str] = {str: f"{TAG}text", list: f"{TAG}parts"}
    return kinds.get(type(value))


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks; developer is what newer clients call system."""
    content: (
        Annotated[
            Annotated[str, Tag(f"{TAG}text")] | Annotated[list[TextPart], Tag(f"{TAG}parts")],
            Discriminator(
                _content_kind,
                custom_error_type="content_type",
                custom_error_message="must be a string or an array of text parts",
            ),
        ]
        | None
    ) = None
    """What is said; text parts are joined by line breaks."""
    name: str | None = None
    """Name of the speaker, if the chat template reads it."""
    tool_calls: list[ToolCall] | None = None
    """Calls that the assistant made."""
    tool_call_id: str | None = None
    """The call that a tool's message answers."""
    # Clients send an answer back as they got it, empty fields included.
    function_call: Annotated[Any, Refused("outdated; use tool_calls")] = None
    audio: Annotated[Any, Refused(_TEXT_ONLY)] = None
    refusal: Annotated[Any, Refused("refusals aren't supported")] = None
    parsed: Any = None
    """Accepted without effect: OpenAI's client sends what it parsed along."""
    annotations: Annotated[Any, Refused("annotations aren't supported", ([],))] = None

    def check(self, where: str) -> None:
        """Check what concerns more than one field.

        Args:
            where: the message's path, `messages[0]`.

        Raises:
            ApiError: names the field.
        """
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            param = f"{where}.content"
            raise ApiError(
                400, f"{param}: is required", param=param, code="missing_required_parameter"
            )
        if self.tool_calls and self.role != "assistant":
            raise invalid(f"{where}.tool_calls", "only the assistant calls tools")
        if (self.tool_call_id is None) == (self.role == "tool"):
            why = "is required" if self.role == "tool" else "only allowed in a tool's message"
            raise invalid(f"{where}.tool_call_id", why)

    def for_template(self, where: str) -> dict[str, Any]:
        """Return the message as chat templates read it.

        Raises:
            ApiError: the arguments of a call are no JSON object.
        """
        content = self.content or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = template_calls(self.tool_calls, where)
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    @property
    def size(self) -> int:
        """Characters in it, about."""
        content = self.content or ""
        if isinstance(content, str):
            return len(content)
        return sum(len(part.text) for part in content)


Messages = Annotated[list[Message], Field(min_length=1)]
"""A conversation so far."""


class TemplateFields(Body):
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool | None = None
    """Begin an answer after the last message; the default unless that message is continued."""
    continue_final_message: bool | None = None
    """Leave the last message open, so that the answer goes on with it."""
    chat_template: str | None = None
    """A Jinja template instead of the model's own; needs --trust-request-chat-template."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables that the model's chat template reads."""

    def check_template(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        if self.continue_final_message and self.add_generation_prompt:
            raise invalid("continue_final_message", "contradicts add_generation_prompt; keep one")


class ChatCompletionRequest(SamplingFields, TemplateFields, ToolFields):
    """Answer a conversation."""

    messages: Messages
    """The conversation so far."""
    max_completion_tokens: Integer | None = None
    """Most tokens to make; up to the end of the context by default."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Integer | None = None
    """And those of this many likeliest tokens."""
    modalities: Annotated[Any, Refused(_TEXT_ONLY, (["text"],))] = None
    audio: Annotated[Any, Refused(_TEXT_ONLY)] = None
    web_search_options: Annotated[Any, Refused("there is no web search")] = None
    reasoning_effort: str | None = None
    """How long to think, where the model's chat template reads it."""

    def check(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        super().check()
        self.check_template()
        self.check_tools()
        for index, message in enumerate(self.messages):
            message.check(f"messages[{index}]")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "only allowed when logprobs is true")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise invalid("max_tokens", "contradicts max_completion_tokens; keep one")

    @property
    def spelling(self) -> dict[str, str]:
        """What the engine's names are called here."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit, "logprobs": "top_logprobs"}

    def sampling(
        self, tools: ToolUse | None, spelling: Mapping[str, str]
    ) -> tuple[SamplingParams, Mapping[str, str]]:
        """Return the engine's parameters, and the client's names of what it calls otherwise.

        Args:
            tools: how tools are used.
            spelling: the client's names of this body's fields, where they differ.

        Raises:
            ApiError: a value is out of range.
        """
        limit = self.max_tokens
        structure, more = self.structure(), {}
        if tools is not None:
            if structure is not None and tools.structure is not None:
                raise invalid(structure.field, "contradicts a call that tool_choice demands")
            structure = structure or tools.structure
            if tools.special_tokens:
                more["skip_special_tokens"] = False
        names = {**self.spelling, **(structure.spelling if structure else {}), **spelling}
        params = sampling_params(
            self,
            max_tokens=self.max_completion_tokens if limit is None else limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
            spelling=names,
            structure=structure,
            **more,
        )
        return params, names
