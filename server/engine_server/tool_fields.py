"""The fields of a chat that declare tools and tell of calls."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine_server.errors import ApiError
from engine_server.field_rules import Refused
from engine_server.request_body import TAG, Body

_NAME = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")


class Function(Body):
    """What a model may call."""

    name: Annotated[str, _NAME]
    """1 to 128 letters, digits, `_`, `-` and `.`."""
    description: str | None = None
    """What it does, for the model."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments; none when it is omitted."""
    strict: bool | None = None
    """A call that is demanded is always held to the schema; one that is free never is."""


class Tool(Body):
    """A tool."""

    type: Literal["function"]
    function: Function
    """The function."""


class CalledFunction(Body):
    """What was called."""

    name: str
    arguments: str
    """The arguments as JSON text."""
    parsed_arguments: Any = None
    """Accepted without effect: OpenAI's client sends what it parsed along."""


class ToolCall(Body):
    """An earlier call of the assistant."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Accepted without effect: chunks of a stream have it."""


class FunctionName(Body):
    """Names a function."""

    name: str


class NamedChoice(Body):
    """Demands a call of one function."""

    type: Literal["function"]
    function: FunctionName


def _choice_kind(value: Any) -> str | None:
    kinds: dict[object, str] = {str: f"{TAG}word", dict: f"{TAG}function"}
    return kinds.get(type(value))


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}word")]
    | Annotated[NamedChoice, Tag(f"{TAG}function")],
    Discriminator(
        _choice_kind,
        custom_error_type="choice_type",
        custom_error_message="must be none, auto, required or an object that names a function",
    ),
]


class ToolFields(Body):
    """Tools of a chat."""

    tools: list[Tool] | None = None
    """What the model may call."""
    tool_choice: ToolChoice | None = None
    """none, auto (the default with tools), required, or the function that must be called."""
    parallel_tool_calls: bool | None = None
    """false allows one call at most."""
    functions: Annotated[Any, Refused("outdated; use tools", ([],))] = None
    function_call: Annotated[Any, Refused("outdated; use tool_choice", ("none",))] = None

    def check_tools(self) -> None:
        """Check what concerns more than one field.

        Raises:
            ApiError: names the field.
        """
        names = [tool.function.name for tool in self.tools or ()]
        for index, name in enumerate(names):
            if name in names[:index]:
                param = f"tools[{index}].function.name"
                raise _invalid(param, f"{name!r} is there twice")
        match self.tool_choice:
            case "required" if not names:
                raise _invalid("tool_choice", "required needs tools")
            case NamedChoice(function=FunctionName(name=name)) if name not in names:
                raise _invalid("tool_choice.function.name", f"there is no tool {name!r}")


def template_calls(calls: list[ToolCall], where: str) -> list[dict[str, Any]]:
    """Return calls as chat templates read them: with arguments as objects.

    Raises:
        ApiError: some arguments are no JSON object.
    """
    made = []
    for index, call in enumerate(calls):
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            param = f"{where}.tool_calls[{index}].function.arguments"
            raise _invalid(param, "must be a JSON object, as text")
        function = {"name": call.function.name, "arguments": arguments}
        made.append({"id": call.id, "type": "function", "function": function})
    return made


def _invalid(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", param=param, code="invalid_value")
