"""Masks allow exactly what the demand allows, and what can't be held to is refused."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from engine.errors import RequestError
from engine.grammars import Matcher
from engine.structured_outputs import StructuredOutputs
from engine.testing.tiny import byte_tokenizer
from engine_grammar_llguidance.plugin import Llguidance

END = 2
VOCAB_SIZE = 300
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["é", "b"]}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def library() -> Llguidance:
    made = Llguidance()
    made.load(byte_tokenizer(), vocab_size=VOCAB_SIZE, end_token_ids=[END])
    return made


def allowed(library: Llguidance, matchers: list[Matcher]) -> list[list[int]]:
    mask = np.full((len(matchers), -(-VOCAB_SIZE // 32)), -1, dtype=np.int32)
    library.fill(matchers, mask)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in bits]


def random_text(library: Llguidance, asked: StructuredOutputs, seed: int) -> str:
    """Draw among the allowed tokens until the end token is drawn."""
    draw, matcher = random.Random(seed), library.compile(asked).matcher()
    tokens: list[int] = []
    while len(tokens) < 3000:
        choice = draw.choice(allowed(library, [matcher])[0])
        if choice == END:
            return str(byte_tokenizer().decode(tokens))
        matcher.accept([choice])
        tokens.append(choice)
    raise AssertionError("no end")


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_drawn_fits_the_demand(library: Llguidance, seed: int) -> None:
    pattern = r"(ab|c)+[0-9]{2}"
    assert re.fullmatch(pattern, random_text(library, StructuredOutputs(regex=pattern), seed))
    words = StructuredOutputs(choice=["one", 'tw"o', "dré"])
    assert random_text(library, words, seed) in (words.choice or [])
    value = json.loads(random_text(library, StructuredOutputs(json=SCHEMA), seed))
    assert value["name"] in ("é", "b")
    assert isinstance(value["age"], int)
    for grammar in ('root ::= "x" [0-9]+', 'start: "x" /[0-9]+/'):
        text = random_text(library, StructuredOutputs(grammar=grammar), seed)
        assert re.fullmatch("x[0-9]+", text)


def can_write(library: Llguidance, asked: StructuredOutputs, text: str) -> bool:
    matcher = library.compile(asked).matcher()
    for token in byte_tokenizer()(text).input_ids:
        if token not in allowed(library, [matcher])[0]:
            return False
        matcher.accept([token])
    return END in allowed(library, [matcher])[0]


def test_json_may_be_compact_or_pretty_but_not_endless(library: Llguidance) -> None:
    value = {"name": "é", "age": [{"deep": {"deeper": []}}, 1]}
    asked = StructuredOutputs(json_object=True)
    styles: list[dict[str, Any]] = [{}, {"separators": (",", ":")}]
    for style in [*styles, {"indent": 2}, {"indent": 4}, {"indent": "\t"}]:
        text = json.dumps(value, ensure_ascii=False, **style)
        assert can_write(library, asked, text), text
    assert not can_write(library, asked, "{     }")
    assert not can_write(library, asked, "{\n\n\n}")


def test_rows_are_filled_together_and_independently(library: Llguidance) -> None:
    compiled = library.compile(StructuredOutputs(choice=["ab", "cd"]))
    first, second = compiled.matcher(), compiled.matcher()
    start = allowed(library, [second])[0]
    first.accept(start[:1])
    both = allowed(library, [first, second])
    assert both[1] == start
    assert both[0] == allowed(library, [first])[0]
    assert len(both[0]) == 1


def test_a_finished_text_can_only_end(library: Llguidance) -> None:
    matcher = library.compile(StructuredOutputs(choice=["a"])).matcher()
    matcher.accept(byte_tokenizer()("a").input_ids)
    assert allowed(library, [matcher]) == [[END]]


def test_a_token_that_wasnt_allowed_is_an_error(library: Llguidance) -> None:
    matcher = library.compile(StructuredOutputs(choice=["a"])).matcher()
    with pytest.raises(RequestError, match="can't go on"):
        matcher.accept(byte_tokenizer()("b").input_ids)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"json": {"type": "number", "not": {"const": 1}}}, "not"),
        ({"json": {"type": "nothing"}}, "nothing"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "root ::= ("}, "GBNF|Expected|convert"),
    ],
    ids=str,
)
def test_an_unusable_demand_is_refused_by_name(
    library: Llguidance, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        library.compile(StructuredOutputs(**asked))
    assert caught.value.param == f"structured_outputs.{next(iter(asked))}"
    assert "\n" not in str(caught.value)
