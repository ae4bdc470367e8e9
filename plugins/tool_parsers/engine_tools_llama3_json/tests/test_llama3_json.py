"""An answer that is an object is a call; any other is text."""

from __future__ import annotations

import pytest

from engine.testing.tool_calls import join, read_in_pieces
from engine_tools_llama3_json.parser import Llama3Json

CALL = '{"name": "f", "parameters": {"a": {"b": "}"}}}'
ARGUMENTS = '{"a": {"b": "}"}}'
CASES = [
    ("just text", "just text", []),
    ("text with {", "text with {", []),
    (CALL, "", [("f", ARGUMENTS)]),
    (f"<|python_tag|>{CALL}", "", [("f", ARGUMENTS)]),
    (f"\n{CALL}", "", [("f", ARGUMENTS)]),
    (f"{CALL}; {CALL}", "", [("f", ARGUMENTS)] * 2),
    ('{"type": "function", "name": "g", "parameters": {}}', "", [("g", "{}")]),
    ('{"answer": 42}', '{"answer": 42}', []),
    ("{not json", "{not json", []),
    ("<|python", "<|python", []),
    ("", "", []),
]


@pytest.mark.parametrize(("answer", "text", "calls"), CASES)
def test_an_answer_is_read_the_same_however_it_is_cut(
    answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    for cuts in (0, 1, 3, len(answer), len(answer) // 2):
        assert read_in_pieces(Llama3Json().parser(), answer, cuts) == (text, calls)


def test_text_is_passed_on_at_once() -> None:
    parser = Llama3Json().parser()
    assert join(parser.push("Hel"))[0] == "Hel"
    assert join(parser.push("lo {"))[0] == "lo {"


def test_only_templates_of_llama_3_with_tools_are_handled() -> None:
    assert Llama3Json.handles("<|start_header_id|> {{ '\"parameters\": ' }}")
    assert not Llama3Json.handles("<|start_header_id|>")
