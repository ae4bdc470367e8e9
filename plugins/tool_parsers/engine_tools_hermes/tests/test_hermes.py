"""Calls between tags are told apart from text, however the text is cut."""

from __future__ import annotations

import pytest

from engine.testing.tool_calls import join, read_in_pieces
from engine.tool_parsers import CallDelta
from engine_tools_hermes.parser import Hermes

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}<\\"é", "b": [1, {}]}}\n</tool_call>'
ARGUMENTS = '{"a": "}<\\"é", "b": [1, {}]}'
CASES = [
    ("just text < tool", "just text < tool", []),
    (CALL, "", [("f", ARGUMENTS)]),
    (f"Let me see.\n{CALL}", "Let me see.\n", [("f", ARGUMENTS)]),
    (f"{CALL}\n{CALL}\n", "", [("f", ARGUMENTS)] * 2),
    (f"{CALL} and so on", " and so on", [("f", ARGUMENTS)]),
    ('<tool_call>{"arguments": {"x": 1}, "name": "g"}</tool_call>', "", [("g", '{"x": 1}')]),
    ('<tool_call>{"name": "g", "arguments": "{\\"x\\": 1}"}', "", [("g", '{"x": 1}')]),
    ('<tool_call>{"name": "g"}</tool_call>', "", [("g", "{}")]),
    ('<tool_call>{"name": "g", "arguments": {"x": ', "", [("g", '{"x": ')]),
    ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
    ('<tool_call>{"a": 1}', '<tool_call>{"a": 1}', []),
    ('<tool_call>{"na', '<tool_call>{"na', []),
    ("text <tool_ca", "text <tool_ca", []),
]


@pytest.mark.parametrize(("answer", "text", "calls"), CASES)
def test_an_answer_is_read_the_same_however_it_is_cut(
    answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    for cuts in (0, 1, 3, len(answer), len(answer) // 2):
        assert read_in_pieces(Hermes().parser(), answer, cuts) == (text, calls)


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = Hermes().parser()
    deltas = parser.push('<tool_call>{"name": "f", "arguments": {"city": "Par')
    assert join(deltas) == ("", [("f", '{"city": "Par')])
    assert parser.push('is"') == [CallDelta(0, arguments='is"')]


def test_text_is_held_back_only_where_a_tag_may_begin() -> None:
    parser = Hermes().parser()
    assert join(parser.push("a <tool"))[0] == "a "
    assert join(parser.push("box"))[0] == "<toolbox"


def test_only_templates_with_that_tag_and_json_are_handled() -> None:
    assert Hermes.handles("{{ '<tool_call>' }}")
    assert not Hermes.handles("{{ '<tool_call><function=' }}")
    assert not Hermes.handles("{{ '<tool_call>f<arg_key>' }}")
    assert not Hermes.handles("{{ message.content }}")
