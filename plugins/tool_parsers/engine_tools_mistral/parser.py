"""Mistral's instruction models: an array (tokenizers up to v7), or name and arguments (v11)."""

from __future__ import annotations

import secrets
import string

from engine.json_calls import CallReader, NoCallError, ObjectScanner, hold_back
from engine.tool_parsers import CallDelta, Delta, TextDelta, ToolParser, ToolParserPlugin

_MARK, _ARGS = "[TOOL_CALLS]", "[ARGS]"
_ID_LETTERS = string.ascii_letters + string.digits


class Mistral(ToolParserPlugin):
    """Reads `[TOOL_CALLS][{"name": …, "arguments": …}, …]` and `[TOOL_CALLS]name[ARGS]{…}`."""

    NAME = "mistral"
    SUMMARY = "[TOOL_CALLS][{…}] and [TOOL_CALLS]name[ARGS]{…}: Mistral"
    SPECIAL_TOKENS = True

    @classmethod
    def handles(cls, chat_template: str) -> bool:
        """Say whether the template writes earlier calls that way."""
        return _MARK in chat_template

    def new_call_id(self) -> str:
        """Return nine letters and digits: Mistral's templates refuse anything else."""
        return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))

    def parser(self) -> ToolParser:
        """Return a parser."""
        return _Parser()


class _Parser(ToolParser):
    def __init__(self) -> None:
        self._text = ""
        self._calls = 0
        self._marked = False
        self._call: CallReader | None = None
        self._arguments: ObjectScanner | None = None

    def push(self, text: str) -> list[Delta]:
        self._text += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        if self._call is not None:
            return self._read_call(self._call, deltas)
        if self._arguments is not None:
            return self._read_arguments(self._arguments, deltas)
        if self._marked:
            return self._begin(deltas)
        before, found, after = self._text.partition(_MARK)
        held = 0 if found else hold_back(self._text, _MARK)
        if said := before[: len(before) - held]:
            deltas.append(TextDelta(said))
        self._text = after if found else before[len(before) - held :]
        self._marked = bool(found)
        return self._marked

    def _begin(self, deltas: list[Delta]) -> bool:
        """Tell the two formats apart after the mark, or go on in an array."""
        text = self._text.lstrip()
        if text and text[0] in "[,]":
            self._text = text[1:]
            self._marked = text[0] != "]"
            return True
        if text and text[0] == "{":
            self._text, self._call = text, CallReader(self._calls)
            return True
        name, found, after = text.partition(_ARGS)
        if not found:
            brace = text.find("{")
            if brace < 0:
                return False
            name, after = text[:brace], text[brace:]
        self._text, self._arguments = after, ObjectScanner()
        deltas.append(CallDelta(self._calls, name.strip()))
        return True

    def _read_call(self, call: CallReader, deltas: list[Delta]) -> bool:
        new, self._text = self._text, ""
        try:
            deltas += call.push(new)
        except NoCallError:
            self._call, self._marked = None, False
            if call.name is None:
                deltas.append(TextDelta(call.text))
            return False
        if call.done:
            self._call, self._text = None, call.rest
            self._calls += 1
        return call.done

    def _read_arguments(self, scanner: ObjectScanner, deltas: list[Delta]) -> bool:
        if not self._text:
            return False
        end = scanner.scan(self._text)
        deltas.append(CallDelta(self._calls, arguments=self._text[:end]))
        self._text = "" if end is None else self._text[end:]
        if end is None:
            return False
        self._arguments, self._marked = None, False
        self._calls += 1
        return True

    def finish(self) -> list[Delta]:
        text = self._text
        if self._call is not None:
            text = "" if self._call.name is not None else self._call.text
        return [TextDelta(text)] if text.strip() else []
