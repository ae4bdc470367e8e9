"""Both of Mistral's formats are read, however the text is cut."""

from __future__ import annotations

import re

import pytest

from engine.testing.tool_calls import join, read_in_pieces
from engine_tools_mistral.parser import Mistral

CASES = [
    ("just [text]", "just [text]", []),
    ('[TOOL_CALLS][{"name": "f", "arguments": {"a": "]"}}]', "", [("f", '{"a": "]"}')]),
    (
        'Well. [TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": 1}}]',
        "Well. ",
        [("f", "{}"), ("g", '{"b": 1}')],
    ),
    ('[TOOL_CALLS]f[ARGS]{"a": "}"}', "", [("f", '{"a": "}"}')]),
    ('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}', "", [("f", '{"a": 1}'), ("g", "{}")]),
    ('[TOOL_CALLS]f[ARGS]{"a": 1', "", [("f", '{"a": 1')]),
    ('[TOOL_CALLS][{"no": 1}]', '{"no": 1}]', []),
    ("[TOOL", "[TOOL", []),
]


@pytest.mark.parametrize(("answer", "text", "calls"), CASES)
def test_an_answer_is_read_the_same_however_it_is_cut(
    answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    for cuts in (0, 1, 3, len(answer), len(answer) // 2):
        assert read_in_pieces(Mistral().parser(), answer, cuts) == (text, calls)


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = Mistral().parser()
    assert join(parser.push('[TOOL_CALLS]f[ARGS]{"a": "x')) == ("", [("f", '{"a": "x')])


def test_ids_are_what_the_templates_demand() -> None:
    assert re.fullmatch("[a-zA-Z0-9]{9}", Mistral().new_call_id())
    assert Mistral.handles("[TOOL_CALLS]")
    assert not Mistral.handles("<tool_call>")
