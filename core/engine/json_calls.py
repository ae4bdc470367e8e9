"""Reads calls of tools that are written as JSON objects, while their text is still coming.

Most formats write a call as `{"name": "f", "arguments": {…}}` and differ in what stands around
it, so parsers of formats share this.
"""

from __future__ import annotations

import json
from enum import Enum

from engine.tool_parsers import CallDelta

_ARGUMENTS = ("arguments", "parameters")
_decode = json.JSONDecoder().raw_decode


class NoCallError(ValueError):
    """What was read is no call, or not any more; the text so far is `CallReader.text`."""


class _Stage(Enum):
    OPEN = "before the brace"
    KEY = "before a key"
    VALUE = "before a value"
    ARGUMENTS = "in the arguments"
    DONE = "after the brace"


class ObjectScanner:
    """Finds the end of a JSON object or array in pieces of text."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def scan(self, text: str) -> int | None:
        """Return the position after the value's end; None when it isn't in this piece."""
        for position, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    return position + 1
        return None


class CallReader:
    """Reads one call. The arguments are passed on as they come, once the name is known.

    Args:
        index: of the call in the answer.

    Attributes:
        text: everything that was pushed.
        done: the object is complete.
        name: of the function, once it was read.
        rest: what came after the object.
    """

    def __init__(self, index: int) -> None:
        self.text = ""
        self.done = False
        self.name: str | None = None
        self.rest = ""
        self._index = index
        self._stage, self._at, self._key = _Stage.OPEN, 0, ""
        self._waiting: str | None = None
        self._told = False
        self._scanner = ObjectScanner()

    def push(self, text: str) -> list[CallDelta]:
        """Take more text in.

        Raises:
            NoCallError: it can't be a call; nothing was told of it if `name` is None.
        """
        self.text += text
        deltas: list[CallDelta] = []
        while self._step(deltas):
            pass
        return deltas

    def _step(self, deltas: list[CallDelta]) -> bool:
        """Read the next part; return whether there may be another one already."""
        if self._stage is _Stage.ARGUMENTS:
            return self._read_arguments(deltas)
        if self._stage is _Stage.DONE:
            return False
        while self._at < len(self.text) and self.text[self._at].isspace():
            self._at += 1
        if self._at == len(self.text):
            return False
        if self._stage is _Stage.OPEN:
            self._expect("{")
            self._stage = _Stage.KEY
            return True
        return self._read_key(deltas) if self._stage is _Stage.KEY else self._read_value(deltas)

    def _expect(self, char: str) -> None:
        if self.text[self._at] != char:
            raise NoCallError(f"{char} is missing")
        self._at += 1

    def _read_key(self, deltas: list[CallDelta]) -> bool:
        char = self.text[self._at]
        if char == "}":
            self._at += 1
            self._end(deltas)
            return False
        if char == ",":
            self._at += 1
            return True
        if char != '"':
            raise NoCallError("a key must be a string")
        try:
            key, end = _decode(self.text, self._at)
        except ValueError:
            return False
        while end < len(self.text) and self.text[end].isspace():
            end += 1
        if end == len(self.text):
            return False
        self._key, self._at, self._stage = key, end, _Stage.VALUE
        self._expect(":")
        return True

    def _read_value(self, deltas: list[CallDelta]) -> bool:
        if self._key in _ARGUMENTS and self.name is not None and self.text[self._at] == "{":
            self._stage = _Stage.ARGUMENTS
            self._tell(deltas)
            return True
        try:
            value, end = _decode(self.text, self._at)
        except ValueError:
            return False
        if end == len(self.text):  # a number may go on
            return False
        raw = self.text[self._at : end]
        self._at, self._stage = end, _Stage.KEY
        if self._key == "name":
            if not isinstance(value, str) or not value:
                raise NoCallError("the name must be a string")
            self.name = value
        elif self._key in _ARGUMENTS:
            # Some models write the arguments as a string that holds the object.
            self._waiting = value if isinstance(value, str) else raw
        return True

    def _read_arguments(self, deltas: list[CallDelta]) -> bool:
        new = self.text[self._at :]
        if not new:
            return False
        end = self._scanner.scan(new)
        piece = new if end is None else new[:end]
        self._at += len(piece)
        deltas.append(CallDelta(self._index, arguments=piece))
        if end is not None:
            self._stage = _Stage.KEY
        return end is not None

    def _tell(self, deltas: list[CallDelta]) -> None:
        if not self._told:
            self._told = True
            deltas.append(CallDelta(self._index, self.name))

    def _end(self, deltas: list[CallDelta]) -> None:
        if self.name is None:
            raise NoCallError("the object has no name")
        if not self._told:
            self._tell(deltas)
            deltas.append(CallDelta(self._index, arguments=self._waiting or "{}"))
        self._stage, self.done, self.rest = _Stage.DONE, True, self.text[self._at :]


def hold_back(text: str, marker: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `marker`."""
    for count in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:count]):
            return count
    return 0
