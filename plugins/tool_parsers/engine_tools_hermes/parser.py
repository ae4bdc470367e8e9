"""Hermes 2 Pro (Nous Research, 2024), Qwen 2.5 and 3, and many fine-tunes."""

from __future__ import annotations

from engine.json_calls import CallReader, NoCallError, hold_back
from engine.tool_parsers import Delta, TextDelta, ToolParser, ToolParserPlugin

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_OTHERS = ("<function=", "<arg_key>")
"""Models that write no JSON between the same tags (Qwen3-Coder, GLM)."""


class Hermes(ToolParserPlugin):
    """Reads `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of times."""

    NAME = "hermes"
    SUMMARY = "<tool_call>{…}</tool_call>: Hermes, Qwen"
    SPECIAL_TOKENS = True  # in some of these models the tags are

    @classmethod
    def handles(cls, chat_template: str) -> bool:
        """Say whether the template writes earlier calls that way, as JSON."""
        return _OPEN in chat_template and not any(other in chat_template for other in _OTHERS)

    def parser(self) -> ToolParser:
        """Return a parser."""
        return _Parser()


class _Parser(ToolParser):
    def __init__(self) -> None:
        self._text = ""
        self._call: CallReader | None = None
        self._closing = False
        self._calls = 0

    def push(self, text: str) -> list[Delta]:
        self._text += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        if self._call is not None:
            return self._read_call(self._call, deltas)
        if self._closing:
            return self._close()
        return self._read_text(deltas)

    def _read_text(self, deltas: list[Delta]) -> bool:
        before, found, after = self._text.partition(_OPEN)
        if found:
            self._say(before, deltas)
            self._text, self._call = after, CallReader(self._calls)
            return True
        held = hold_back(self._text, _OPEN)
        if self._calls and not self._text[: len(self._text) - held].strip():
            return False  # white space between two calls, as it seems
        self._say(self._text[: len(self._text) - held], deltas)
        self._text = self._text[len(self._text) - held :]
        return False

    def _say(self, text: str, deltas: list[Delta]) -> None:
        if text and not (self._calls and not text.strip()):
            deltas.append(TextDelta(text))

    def _read_call(self, call: CallReader, deltas: list[Delta]) -> bool:
        new, self._text = self._text, ""
        try:
            deltas += call.push(new)
        except NoCallError:
            self._call = None
            if call.name is None:
                deltas.append(TextDelta(_OPEN + call.text))
            return False
        if call.done:
            self._call, self._closing, self._text = None, True, call.rest
            self._calls += 1
        return call.done

    def _close(self) -> bool:
        """Skip the closing tag, which some models forget."""
        text = self._text.lstrip()
        if _CLOSE.startswith(text) and text != _CLOSE:
            return False
        self._closing, self._text = False, text.removeprefix(_CLOSE)
        return True

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._call is not None and self._call.name is None:
            deltas.append(TextDelta(_OPEN + self._call.text))
        elif self._call is None and not self._closing:
            self._say(self._text, deltas)
        return deltas
