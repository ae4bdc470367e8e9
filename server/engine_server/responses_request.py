"""The body of POST /v1/responses (Open Responses), and how it becomes a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine_server.chat_request import ChatCompletionRequest
from engine_server.errors import ApiError
from engine_server.field_rules import Integer, Number, Refused
from engine_server.request_body import TAG, Body
from engine_server.structure_fields import JsonObjectFormat, JsonSchema, TextFormat
from engine_server.tool_fields import ToolCall

_STORES_NOTHING = "nothing is stored here; send the whole conversation as input"


class InputText(Body):
    """A piece of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[Any, Refused("annotations aren't supported", ([],))] = None
    logprobs: Any = None


def _content_kind(value: Any) -> str | None:
    kinds: dict[object, str] = {str: f"{TAG}text", list: f"{TAG}parts"}
    return kinds.get(type(value))


Content = Annotated[
    Annotated[str, Tag(f"{TAG}text")] | Annotated[list[InputText], Tag(f"{TAG}parts")],
    Discriminator(
        _content_kind,
        custom_error_type="content_type",
        custom_error_message="must be a string or an array of text parts",
    ),
]


class MessageItem(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: Content
    # An answer is sent back as it came.
    id: str | None = None
    status: str | None = None
    phase: Any = None


class CallItem(Body):
    """An earlier call of a function."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    parsed_arguments: Any = None


class CallOutputItem(Body):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: str | None = None


def _item_kind(value: Any) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else None
    known = ("message", "function_call", "function_call_output")
    return f"{TAG}{kind}" if kind in known else None


Item = Annotated[
    Annotated[MessageItem, Tag(f"{TAG}message")]
    | Annotated[CallItem, Tag(f"{TAG}function_call")]
    | Annotated[CallOutputItem, Tag(f"{TAG}function_call_output")],
    Discriminator(
        _item_kind,
        custom_error_type="item_type",
        custom_error_message="must be a message, a function_call or a function_call_output",
    ),
]


def _input_kind(value: Any) -> str | None:
    kinds: dict[object, str] = {str: f"{TAG}text", list: f"{TAG}items"}
    return kinds.get(type(value))


class FunctionTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Body):
    """Demands a call of one function."""

    type: Literal["function"]
    name: str


def _choice_kind(value: Any) -> str | None:
    kinds: dict[object, str] = {str: f"{TAG}word", dict: f"{TAG}function"}
    return kinds.get(type(value))


class SchemaFormat(Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: Annotated[JsonSchema, Field(alias="schema")]
    strict: bool | None = None


class TextOptions(Body):
    """What the text must look like."""

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] = (
        TextFormat(type="text")
    )
    verbosity: Any = None
    """Accepted without effect."""


class ReasoningOptions(Body):
    """How to think."""

    effort: str | None = None
    """Where the model's chat template reads it."""
    summary: Annotated[Any, Refused("there are no summaries")] = None
    generate_summary: Annotated[Any, Refused("there are no summaries")] = None


class ResponseStreamOptions(Body):
    """What a stream tells besides."""

    include_obfuscation: Any = None
    """Accepted without effect: events are never padded."""


class ResponsesRequest(Body):
    """Answer a conversation."""

    model: str | None = None
    """Name of the model; the one that is served when omitted."""
    input: Annotated[
        Annotated[str, Tag(f"{TAG}text")]
        | Annotated[list[Item], Tag(f"{TAG}items"), Field(min_length=1)],
        Discriminator(
            _input_kind,
            custom_error_type="input_type",
            custom_error_message="must be a string or an array of items",
        ),
    ]
    """What the user says, or the whole conversation."""
    instructions: str | None = None
    """Stand before the conversation, as the system's message."""
    max_output_tokens: Integer | None = None
    """Most tokens to make; up to the end of the context by default."""
    temperature: Number | None = None
    """0 takes the likeliest token; 1 is the model's own distribution."""
    top_p: Number | None = None
    """Keep the likeliest tokens whose probabilities sum to at least this."""
    presence_penalty: Number | None = None
    """Subtracted once from the logit of each token in the output."""
    frequency_penalty: Number | None = None
    """Subtracted for each occurrence of a token in the output."""
    stream: bool | None = None
    """Send the answer piece by piece, as server-sent events."""
    stream_options: ResponseStreamOptions | None = None
    """Only include_obfuscation, without effect."""
    text: TextOptions | None = None
    """format: text, json_object, or json_schema with a schema."""
    tools: list[FunctionTool] | None = None
    """Functions that the model may call."""
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}word")]
            | Annotated[NamedFunction, Tag(f"{TAG}function")],
            Discriminator(
                _choice_kind,
                custom_error_type="choice_type",
                custom_error_message="must be none, auto, required or an object with a name",
            ),
        ]
        | None
    ) = None
    """none, auto (the default with tools), required, or the function that must be called."""
    parallel_tool_calls: bool | None = None
    """false allows one call at most."""
    reasoning: ReasoningOptions | None = None
    """effort, where the model's chat template reads it."""
    metadata: dict[str, str] | None = None
    """Returned as it is."""
    store: Any = None
    """Accepted without effect: nothing is stored, and the answer says so."""
    include: Annotated[
        Any, Refused("there is nothing to include", ([], ["reasoning.encrypted_content"]))
    ] = None
    top_logprobs: Annotated[Any, Refused("use /v1/chat/completions", (0,))] = None
    truncation: Annotated[Any, Refused("a long input is never cut", ("disabled",))] = None
    background: Annotated[Any, Refused(_STORES_NOTHING, (False,))] = None
    previous_response_id: Annotated[Any, Refused(_STORES_NOTHING)] = None
    conversation: Annotated[Any, Refused(_STORES_NOTHING)] = None
    prompt: Annotated[Any, Refused(_STORES_NOTHING)] = None
    background_options: Annotated[Any, Refused(_STORES_NOTHING)] = None
    context_management: Annotated[Any, Refused("the conversation is taken as it is", ([],))] = None
    image: Annotated[Any, Refused("only text is made")] = None
    access_programs: Annotated[Any, Refused("no programs are run here")] = None
    max_tool_calls: Annotated[Any, Refused("no tools are run here")] = None
    user: Any = None
    service_tier: Any = None
    safety_identifier: str | None = None
    """Returned as it is."""
    prompt_cache_key: str | None = None
    """Returned as it is; equal prefixes are always cached."""
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    moderation: Any = None

    def to_chat(self) -> ChatCompletionRequest:
        """Return the request as a chat.

        Raises:
            ApiError: the arguments of an earlier call are no JSON object.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "stream": self.stream,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "response_format": _response_format(self.text),
        }
        if self.tools:
            body["tools"] = [_tool(tool) for tool in self.tools]
        if isinstance(self.tool_choice, NamedFunction):
            name = self.tool_choice.name
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        else:
            body["tool_choice"] = self.tool_choice
        return ChatCompletionRequest.model_validate(body)

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for item in self.input:
            match item:
                case MessageItem():
                    messages.append({"role": item.role, "content": _text(item.content)})
                case CallItem():
                    _add_call(messages, item)
                case CallOutputItem():
                    content = _text(item.output)
                    messages.append(
                        {"role": "tool", "tool_call_id": item.call_id, "content": content}
                    )
        return messages


SPELLING = {
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "structured_outputs": "text.format",
    "structured_outputs.json": "text.format.schema",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function.name": "tool_choice.name",
}
"""The client's names of what a chat or the engine call otherwise."""


def respelled(error: ApiError) -> ApiError:
    """Return a refusal of the chat in the words of this API."""
    name = error.param or ""
    if name not in SPELLING:
        return error
    message = error.message
    if message.startswith(name):
        message = SPELLING[name] + message.removeprefix(name)
    return ApiError(
        error.status,
        message,
        kind=error.kind,
        param=SPELLING[name],
        code=error.code,
        headers=error.headers,
    )


def _text(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _add_call(messages: list[dict[str, Any]], item: CallItem) -> None:
    """Add a call to the assistant's last message, or make one for it."""
    call = ToolCall.model_validate(
        {
            "id": item.call_id,
            "type": "function",
            "function": {"name": item.name, "arguments": item.arguments},
        }
    )
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call.model_dump(exclude_unset=True))


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    match text.format if text else None:
        case JsonObjectFormat():
            return {"type": "json_object"}
        case SchemaFormat(name=name, schema_=schema):
            return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
    return None
