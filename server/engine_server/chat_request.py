"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine.sampling_params import SamplingParams
from engine_server.field_rules import Integer, Refused
from engine_server.request_body import TAG, Body
from engine_server.request_fields import SamplingFields, invalid, sampling_params

_NO_TOOLS = "tool calls aren't supported yet"
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

    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks; developer is what newer clients call system."""
    content: Annotated[
        Annotated[str, Tag(f"{TAG}text")] | Annotated[list[TextPart], Tag(f"{TAG}parts")],
        Discriminator(
            _content_kind,
            custom_error_type="content_type",
            custom_error_message="must be a string or an array of text parts",
        ),
    ]
    """What is said; text parts are joined by line breaks."""
    name: str | None = None
    """Name of the speaker, if the chat template reads it."""
    # Clients send an answer back as they got it, empty fields included.
    tool_calls: Annotated[Any, Refused(_NO_TOOLS, ([],))] = None
    tool_call_id: Annotated[Any, Refused(_NO_TOOLS)] = None
    function_call: Annotated[Any, Refused(_NO_TOOLS)] = None
    audio: Annotated[Any, Refused(_TEXT_ONLY)] = None
    refusal: Annotated[Any, Refused("refusals aren't supported")] = None
    annotations: Annotated[Any, Refused("annotations aren't supported", ([],))] = None

    def for_template(self) -> dict[str, str]:
        """Return the message as chat templates read it."""
        content = self.content
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        message = {"role": "system" if self.role == "developer" else self.role, "content": content}
        return message if self.name is None else {**message, "name": self.name}


Messages = Annotated[list[Message], Field(min_length=1)]
"""A conversation so far."""


class TemplateFields(Body):
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool | None = None
    """Begin an answer after the last message; the default unless that message is continued."""
    continue_final_message: bool | None = None
    """Leave the last message open, so that the answer goes on with it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables that the model's chat template reads."""

    def check_template(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        if self.continue_final_message and self.add_generation_prompt:
            raise invalid("continue_final_message", "contradicts add_generation_prompt; keep one")


class ChatCompletionRequest(SamplingFields, TemplateFields):
    """Answer a conversation."""

    messages: Messages
    """The conversation so far."""
    max_completion_tokens: Integer | None = None
    """Most tokens to make; up to the end of the context by default."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Integer | None = None
    """And those of this many likeliest tokens."""
    tools: Annotated[Any, Refused(_NO_TOOLS, ([],))] = None
    tool_choice: Annotated[Any, Refused(_NO_TOOLS, ("none", "auto"))] = None
    parallel_tool_calls: Annotated[Any, Refused(_NO_TOOLS, (False,))] = None
    functions: Annotated[Any, Refused(_NO_TOOLS, ([],))] = None
    function_call: Annotated[Any, Refused(_NO_TOOLS, ("none",))] = None
    modalities: Annotated[Any, Refused(_TEXT_ONLY, (["text"],))] = None
    audio: Annotated[Any, Refused(_TEXT_ONLY)] = None
    web_search_options: Annotated[Any, Refused("there is no web search")] = None
    reasoning_effort: Annotated[
        Any, Refused("not supported; set what the chat template reads in chat_template_kwargs")
    ] = None

    def check(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        super().check()
        self.check_template()
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

    def sampling(self) -> SamplingParams:
        """Return the engine's parameters.

        Raises:
            ApiError: a value is out of range.
        """
        limit = self.max_tokens
        return sampling_params(
            self,
            max_tokens=self.max_completion_tokens if limit is None else limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
            spelling=self.spelling,
        )
