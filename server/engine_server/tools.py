"""Lets a model call tools: what it is told, what holds its answer to a call, what is read of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import PluginError
from engine.json_calls import CallReader, NoCallError
from engine.registry import Registry
from engine.tool_parsers import (
    CallDelta,
    Delta,
    TextDelta,
    ToolParser,
    ToolParserPlugin,
    new_call_id,
)
from engine_server.errors import ApiError
from engine_server.structure_fields import Structure, demand
from engine_server.tool_fields import Function, NamedChoice, ToolFields

_REFERENCES = ("$defs", "definitions")


def choose_parser(name: str, tokenizer: Any, registry: Registry) -> ToolParserPlugin | None:
    """Return the parser of a model's format; None when nothing is known of it.

    Args:
        name: of the plugin; `auto` asks each whether it handles the model's chat template.
        tokenizer: the model's, or None.
        registry: the installed plugins.

    Raises:
        PluginError: the named one can't be used.
    """
    if name != "auto":
        named: ToolParserPlugin = registry.load("tool_parsers", name)()
        return named
    template = getattr(tokenizer, "chat_template", None) or ""
    text = "\n".join(template.values()) if isinstance(template, dict) else str(template)
    fitting: list[type[ToolParserPlugin]] = []
    for claim in registry.claims("tool_parsers"):
        try:
            plugin = registry.load_claim(claim)
        except PluginError:
            continue  # `engine plugins` tells; it wasn't asked for
        if plugin.handles(text):
            fitting.append(plugin)
    return max(fitting, key=lambda plugin: plugin.PRIORITY)() if fitting else None


@dataclass(frozen=True)
class ToolUse:
    """How one request uses tools.

    Attributes:
        make: makes what reads one answer.
        new_id: makes an id for a call.
        special_tokens: special tokens must be kept in the text.
        structure: what a demanded call looks like.
        single: at most one call.
        declared: the tools, as chat templates read them.
    """

    make: Callable[[], ToolParser]
    new_id: Callable[[], str]
    special_tokens: bool
    structure: Structure | None
    single: bool
    declared: list[dict[str, Any]]

    def relay(self) -> CallRelay:
        """Return what reads one answer and gives its calls ids."""
        return CallRelay(self.make(), self.new_id, single=self.single)


def tool_use(fields: ToolFields, plugin: ToolParserPlugin | None) -> ToolUse | None:
    """Return how a request uses tools; None when it doesn't.

    Raises:
        ApiError: the model's format isn't known.
    """
    choice = fields.tool_choice or "auto"
    if not fields.tools or choice == "none":
        return None
    functions = [tool.function for tool in fields.tools]
    single = fields.parallel_tool_calls is False
    make: Callable[[], ToolParser]
    structure: Structure | None
    if isinstance(choice, NamedChoice):
        name = choice.function.name
        schema = next(f for f in functions if f.name == name).parameters or {"type": "object"}
        structure = demand("tools", json=schema)
        make = lambda: _NamedCall(name)  # noqa: E731  (a closure is all that is needed)
    elif choice == "required":
        structure = demand("tools", json=_array_of_calls(functions, single=single))
        make = _ArrayOfCalls
    elif plugin is None:
        raise ApiError(
            400,
            "tools: how this model writes calls isn't known; name its format with "
            "--tool-call-parser, or set tool_choice to required or to a function",
            param="tools",
            code="unsupported_parameter",
        )
    else:
        structure, make = None, plugin.parser
    return ToolUse(
        make=make,
        new_id=new_call_id if plugin is None else plugin.new_call_id,
        special_tokens=structure is None and plugin is not None and plugin.SPECIAL_TOKENS,
        structure=structure,
        single=single,
        declared=[tool.model_dump(exclude_none=True, exclude_unset=True) for tool in fields.tools],
    )


def _array_of_calls(functions: Sequence[Function], *, single: bool) -> dict[str, Any]:
    """Return the schema of an array of calls; references of each tool's schema are kept apart."""
    shared: dict[str, Any] = {}
    calls = []
    for number, function in enumerate(functions):
        schema = _lifted(function.parameters or {"type": "object"}, f"tool{number}_", shared)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function.name}, "parameters": schema},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    array: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if single:
        array["maxItems"] = 1
    return {**array, "$defs": shared} if shared else array


def _lifted(schema: dict[str, Any], prefix: str, shared: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that can stand inside another; its definitions go to `shared`."""

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(each) for each in value]
        if not isinstance(value, dict):
            return value
        made = {key: renamed(each) for key, each in value.items()}
        reference = value.get("$ref")
        for group in _REFERENCES:
            if isinstance(reference, str) and reference.startswith(start := f"#/{group}/"):
                made["$ref"] = f"#/$defs/{prefix}{reference.removeprefix(start)}"
        return made

    for group in _REFERENCES:
        definitions = schema.get(group)
        if isinstance(definitions, dict):
            shared |= {f"{prefix}{name}": renamed(each) for name, each in definitions.items()}
    rest: dict[str, Any] = renamed({k: v for k, v in schema.items() if k not in _REFERENCES})
    return rest


class PlainText(ToolParser):
    """Reads answers of models that were told of no tools."""

    def push(self, text: str) -> list[Delta]:
        """Return the text."""
        return [TextDelta(text)]

    def finish(self) -> list[Delta]:
        """Return nothing: nothing is held back."""
        return []


class _NamedCall(ToolParser):
    """The whole answer is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> list[Delta]:
        name, self._name = self._name, None
        return [CallDelta(0, name, text)] if name or text else []

    def finish(self) -> list[Delta]:
        return self.push("")


class _ArrayOfCalls(ToolParser):
    """The whole answer is an array of calls."""

    def __init__(self) -> None:
        self._call: CallReader | None = None
        self._calls = 0
        self._text = ""

    def push(self, text: str) -> list[Delta]:
        self._text += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        if self._call is None:
            self._text = self._text.lstrip(" \n\t[,]")
            if not self._text:
                return False
            self._call = CallReader(self._calls)
        new, self._text = self._text, ""
        try:
            deltas += self._call.push(new)
        except NoCallError:  # only an answer that no grammar held could do this
            deltas.append(TextDelta(self._call.text))
            self._call = None
            return False
        if not self._call.done:
            return False
        self._text, self._call = self._call.rest, None
        self._calls += 1
        return True

    def finish(self) -> list[Delta]:
        return []


@dataclass
class Call:
    """A call of the answer.

    Attributes:
        id: of the call.
        name: of the function.
        arguments: JSON text so far.
    """

    id: str
    name: str
    arguments: str = ""


@dataclass
class Said:
    """A stretch of text.

    Attributes:
        text: so far.
    """

    text: str


@dataclass
class CallRelay:
    """Reads one answer, keeps its text and calls, and gives each call an id.

    Attributes:
        parts: stretches of text and calls so far, in the order of their coming.
    """

    parser: ToolParser
    new_id: Callable[[], str]
    single: bool
    parts: list[Said | Call] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(part.text for part in self.parts if isinstance(part, Said))

    @property
    def calls(self) -> list[Call]:
        """All calls so far."""
        return [part for part in self.parts if isinstance(part, Call)]

    def push(self, text: str) -> list[Delta]:
        """Return what more text tells."""
        return self._keep(self.parser.push(text)) if text else []

    def finish(self) -> list[Delta]:
        """Return what was held back."""
        return self._keep(self.parser.finish())

    def _keep(self, deltas: list[Delta]) -> list[Delta]:
        kept = []
        for delta in deltas:
            if isinstance(delta, TextDelta):
                if self.parts and isinstance(last := self.parts[-1], Said):
                    last.text += delta.text
                else:
                    self.parts.append(Said(delta.text))
            elif self.single and delta.index > 0:
                continue
            elif delta.name is not None:
                self.parts.append(Call(self.new_id(), delta.name, delta.arguments))
            else:
                self.calls[delta.index].arguments += delta.arguments
            kept.append(delta)
        return kept

    def reason(self, finish_reason: str | None) -> str | None:
        """Return the finish reason as OpenAI's API names it."""
        return "tool_calls" if finish_reason == "stop" and self.calls else finish_reason
