"""The contract of a tool-call parser: how a family of models writes the calls of tools.

A parser reads one answer, piece by piece as its text comes, and tells text for the reader from
calls of tools, so that both can be streamed.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from engine.plugin import Plugin


@dataclass(frozen=True)
class TextDelta:
    """More text for the reader."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """A call begins, or more of its arguments.

    Attributes:
        index: of the call in the answer, from 0.
        name: of the function; given once, when the call begins.
        arguments: a piece of the arguments' JSON text.
    """

    index: int
    name: str | None = None
    arguments: str = ""


Delta = TextDelta | CallDelta


class ToolParser(ABC):
    """Reads one answer."""

    @abstractmethod
    def push(self, text: str) -> list[Delta]:
        """Take more text in and return what it told; what may still become a call is held back."""

    @abstractmethod
    def finish(self) -> list[Delta]:
        """Return what was held back; the answer has ended."""


def new_call_id() -> str:
    """Return an id for a call, in OpenAI's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


class ToolParserPlugin(Plugin):
    """Makes parsers for one format."""

    PRIORITY: ClassVar[int] = 0
    """When the user names none, the highest that handles the model's template is taken."""
    SPECIAL_TOKENS: ClassVar[bool] = False
    """Whether the format is marked by special tokens, which then are kept in the text."""

    @classmethod
    @abstractmethod
    def handles(cls, chat_template: str) -> bool:
        """Say whether models with this chat template write calls in this format."""

    def new_call_id(self) -> str:
        """Return an id for a call; a template may demand a certain form."""
        return new_call_id()

    @abstractmethod
    def parser(self) -> ToolParser:
        """Return a parser for one answer."""
