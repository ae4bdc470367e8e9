"""The body of POST /v1/messages, Anthropic's API, and how it becomes a chat."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine_server.chat_request import ChatCompletionRequest
from engine_server.field_rules import Integer, Number, Refused
from engine_server.request_body import TAG, Body
from engine_server.request_fields import invalid


class TextBlock(Body):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: Any = None
    """Accepted without effect: equal prefixes are always cached."""
    citations: Annotated[Any, Refused("citations aren't supported", ([],))] = None


class ToolUseBlock(Body):
    """An earlier call of the assistant."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Any = None
    caller: Any = None


class ToolResultBlock(Body):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: Any = None


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


def _content_kind(value: Any) -> str | None:
    kinds: dict[object, str] = {str: f"{TAG}text", list: f"{TAG}blocks"}
    return kinds.get(type(value))


_content = Discriminator(
    _content_kind,
    custom_error_type="content_type",
    custom_error_message="must be a string or an array of blocks",
)


class AnthropicMessage(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    content: Annotated[
        Annotated[str, Tag(f"{TAG}text")] | Annotated[list[Block], Tag(f"{TAG}blocks")], _content
    ]


class AnthropicTool(Body):
    """A tool."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: Any = None
    input_examples: Annotated[Any, Refused("examples aren't supported", ([],))] = None


class AnthropicToolChoice(Body):
    """Which tools must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Only switched off."""

    type: Literal["disabled"]


class CountTokensRequest(Body):
    """A conversation."""

    model: str | None = None
    """Name of the model; the one that is served when omitted."""
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    """The conversation: text, uses of tools and their results."""
    system: (
        Annotated[
            Annotated[str, Tag(f"{TAG}text")] | Annotated[list[TextBlock], Tag(f"{TAG}blocks")],
            _content,
        ]
        | None
    ) = None
    """Stands before the conversation."""
    tools: list[AnthropicTool] | None = None
    """What the model may call."""
    tool_choice: AnthropicToolChoice | None = None
    """auto (the default with tools), any, tool with a name, or none."""
    thinking: Thinking | None = None
    """Only type disabled."""
    cache_control: Any = None

    def chat(self, **more: Any) -> ChatCompletionRequest:
        """Return the conversation as a chat.

        Raises:
            ApiError: a block stands where it can't; names it.
        """
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _text(self.system)})
        for index, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages[{index}]")
        body: dict[str, Any] = {"model": self.model, "messages": messages, **more}
        if self.tools:
            body["tools"] = [_tool(tool) for tool in self.tools]
        if (choice := self.tool_choice) is not None:
            body["tool_choice"] = _choice(choice)
            body["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        return ChatCompletionRequest.model_validate(body)


class MessagesRequest(CountTokensRequest):
    """Answer a conversation."""

    max_tokens: Integer
    """Most tokens to make."""
    stop_sequences: list[str] | None = None
    """Strings that end the output; they are cut from it."""
    stream: bool | None = None
    """Send the answer piece by piece, as server-sent events."""
    temperature: Number | None = None
    """0 takes the likeliest token; 1 is the model's own distribution."""
    top_p: Number | None = None
    """Keep the likeliest tokens whose probabilities sum to at least this."""
    top_k: Integer | None = None
    """Keep this many of the likeliest tokens."""
    metadata: Any = None
    service_tier: Any = None

    def to_chat(self) -> ChatCompletionRequest:
        """Return the request as a chat.

        Raises:
            ApiError: a block stands where it can't; names it.
        """
        return self.chat(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )


SPELLING = {"prompt": "messages", "max_tokens": "max_tokens", "stop": "stop_sequences"}
"""The client's names of what the engine calls otherwise."""


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _chat_messages(message: AnthropicMessage, where: str) -> list[dict[str, Any]]:
    """Return one message as OpenAI's API writes it: answers of tools are messages there."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    made, texts, calls = list[dict[str, Any]](), list[str](), list[dict[str, Any]]()
    for index, block in enumerate(message.content):
        at = f"{where}.content[{index}].type"
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ToolUseBlock():
                if message.role != "assistant":
                    raise invalid(at, "only the assistant uses tools")
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                if message.role != "user":
                    raise invalid(at, "only the user brings results of tools")
                content = _text(block.content or "")
                made.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
    if texts or calls or not made:
        own: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
        if calls:
            own["tool_calls"] = calls
        made.append(own)
    return made


def _tool(tool: AnthropicTool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(choice: AnthropicToolChoice) -> Any:
    if choice.type != "tool":
        return {"any": "required"}.get(choice.type, choice.type)
    if choice.name is None:
        raise invalid("tool_choice.name", "is required with type tool")
    return {"type": "function", "function": {"name": choice.name}}
