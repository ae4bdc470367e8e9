"""What the text of an answer must look like, as a user asks for it; checked when it is made."""

from __future__ import annotations

import json as jsonlib
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from engine.errors import RequestError

_MAX_CHOICES = 10_000
_KINDS = ("json", "json_object", "regex", "choice", "grammar")


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of these; the whole output then fits it.

    Attributes:
        json: a JSON schema, as its text or as an object.
        json_object: any JSON object.
        regex: a regular expression that matches the whole output.
        choice: the texts of which the output is one.
        grammar: a context-free grammar in the form that the grammar plugin reads (Lark or GBNF
            for the built-in one).
    """

    json: str | dict[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        """Check every field; a schema becomes its text, so that equal ones compare equal.

        Raises:
            RequestError: names the field at fault.
        """
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if self.json is False:  # the schema that nothing fits
            given.append("json")
        if len(given) != 1:
            raise RequestError(
                f"structured_outputs: give exactly one of {', '.join(_KINDS)}"
                + (f", not {' and '.join(given)}" if given else ""),
                param="structured_outputs",
            )
        force_setattr(self, "json", _schema_text(self.json))
        _check(self)

    @property
    def kind(self) -> str:
        """Which of the fields was given."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))

    @property
    def key(self) -> str:
        """A text that is equal for equal demands."""
        return msgspec.json.encode(self, order="sorted").decode()


def _schema_text(schema: Any) -> Any:
    if schema is None:
        return None
    try:
        parsed = jsonlib.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, dict | bool):
            raise TypeError
        return jsonlib.dumps(parsed, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise RequestError(
            "structured_outputs.json: must be a JSON schema: an object, or its text",
            param="structured_outputs.json",
        ) from None


def _check(asked: StructuredOutputs) -> None:
    for name in ("regex", "grammar"):
        value = getattr(asked, name)
        if value is not None and not (isinstance(value, str) and value):
            raise _refuse(name, "must be a non-empty string")
    choice = asked.choice
    if choice is not None:
        texts = isinstance(choice, list) and all(isinstance(text, str) and text for text in choice)
        if not texts or not 0 < len(choice) <= _MAX_CHOICES:
            raise _refuse("choice", f"must be 1 to {_MAX_CHOICES} non-empty strings")
    if not isinstance(asked.json_object, bool):
        raise _refuse("json_object", "must be true or false")


def _refuse(field: str, why: str) -> RequestError:
    param = f"structured_outputs.{field}"
    return RequestError(f"{param}: {why}", param=param)
