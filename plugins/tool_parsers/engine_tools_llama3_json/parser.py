"""Llama 3.1 to 3.3 (Meta, 2024) with JSON-based tool calling."""

from __future__ import annotations

from engine.json_calls import CallReader, NoCallError
from engine.tool_parsers import Delta, TextDelta, ToolParser, ToolParserPlugin

_TAG = "<|python_tag|>"


class Llama3Json(ToolParserPlugin):
    """Reads `{"name": …, "parameters": …}` where an answer begins; several are parted by `;`."""

    NAME = "llama3_json"
    SUMMARY = '{"name": …, "parameters": …} for an answer: Llama 3'
    SPECIAL_TOKENS = True

    @classmethod
    def handles(cls, chat_template: str) -> bool:
        """Say whether the template belongs to Llama 3 and knows tools."""
        return "<|start_header_id|>" in chat_template and '"parameters": ' in chat_template

    def parser(self) -> ToolParser:
        """Return a parser."""
        return _Parser()


class _Parser(ToolParser):
    def __init__(self) -> None:
        self._text = ""
        self._plain = False
        self._call: CallReader | None = None
        self._calls = 0

    def push(self, text: str) -> list[Delta]:
        if self._plain:
            return [TextDelta(text)] if text else []
        self._text += text
        deltas: list[Delta] = []
        while not self._plain and self._step(deltas):
            pass
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        if self._call is not None:
            return self._read_call(self._call, deltas)
        text = self._text.lstrip().removeprefix(_TAG).lstrip()
        if self._calls:
            text = text.lstrip("; \n")
        if not text or (_TAG.startswith(text) and text != _TAG):
            return False
        if text[0] == "{":
            self._call = CallReader(self._calls)
            return True
        self._give_up(self._text, deltas)
        return False

    def _read_call(self, call: CallReader, deltas: list[Delta]) -> bool:
        new, self._text = self._text, ""
        if not call.text:
            new = new[new.index("{") :]
        try:
            deltas += call.push(new)
        except NoCallError:
            self._call = None
            self._give_up("" if call.name is not None else call.text, deltas)
            return False
        if call.done:
            self._call, self._text = None, call.rest
            self._calls += 1
        return call.done

    def _give_up(self, text: str, deltas: list[Delta]) -> None:
        self._plain, self._text = True, ""
        if text:
            deltas.append(TextDelta(text))

    def finish(self) -> list[Delta]:
        text = self._text
        if self._call is not None:
            text = "" if self._call.name is not None else self._call.text
        if self._plain or not text or (self._calls and not text.strip("; \n")):
            return []
        return [TextDelta(text)]
