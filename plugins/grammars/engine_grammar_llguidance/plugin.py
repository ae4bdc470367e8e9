"""Masks from llguidance, which derives them lazily while the text grows: compiling is cheap."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import llguidance
import llguidance.hf
import llguidance.numpy
from llguidance import LLExecutor, LLMatcher, LLTokenizer

from engine.errors import RequestError
from engine.grammars import Grammar, GrammarPlugin, Mask, Matcher
from engine.structured_outputs import StructuredOutputs

_JSON_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,32})?"}
"""A space, or a line break and an indentation, so that a model that is unsure comes to an end."""


class Llguidance(GrammarPlugin):
    """Compiles with llguidance; masks of a step are computed by several threads."""

    NAME = "llguidance"
    SUMMARY = "JSON schema, regex, choice, Lark and GBNF; masks are derived lazily"

    def load(self, tokenizer: Any, *, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        """Read the tokenizer's vocabulary; takes up to a second for a large one.

        Raises:
            RequestError: it isn't a fast tokenizer, or llguidance can't read it.
        """
        size = max(vocab_size, len(tokenizer))
        try:
            self._tokenizer: LLTokenizer = llguidance.hf.from_tokenizer(
                tokenizer, n_vocab=size, eos_token=list(end_token_ids)
            )
        except ValueError as error:
            raise RequestError(
                f"structured_outputs: llguidance can't read this model's tokenizer: {error}",
                param="structured_outputs",
            ) from error
        self._executor = LLExecutor()

    def compile(self, asked: StructuredOutputs) -> Grammar:
        """Compile a demand.

        Raises:
            RequestError: it is invalid or uses what llguidance doesn't implement.
        """
        param = f"structured_outputs.{asked.kind}"
        try:
            grammar = _grammar(asked)
        except ValueError as error:
            raise RequestError(f"{param}: {_one_line(str(error))}", param=param) from None
        # Unlike llguidance's own validation, this releases the interpreter's lock.
        first = LLMatcher(self._tokenizer, grammar, log_level=0)
        if first.is_error():
            raise RequestError(f"{param}: {_one_line(first.get_error())}", param=param)
        return _Compiled(first)

    def fill(self, matchers: Sequence[Matcher], mask: Mask) -> None:
        """Write the masks; rows are computed in parallel, without the interpreter's lock."""
        rows = [(cast("_Matcher", one).inner, row) for row, one in enumerate(matchers)]
        wide = mask
        if mask.shape[1] * 32 < self._tokenizer.vocab_size:
            wide = llguidance.numpy.allocate_token_bitmask(len(rows), self._tokenizer.vocab_size)
        if len(rows) == 1:
            llguidance.numpy.fill_next_token_bitmask(rows[0][0], wide, 0)
        else:
            llguidance.numpy.fill_next_token_bitmask_par(self._executor, rows, wide)
        if wide is not mask:
            mask[:] = wide[:, : mask.shape[1]]


class _Compiled(Grammar):
    def __init__(self, first: LLMatcher) -> None:
        self._first = first

    def matcher(self) -> Matcher:
        return _Matcher(self._first.deep_copy())


class _Matcher(Matcher):
    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner

    def accept(self, token_ids: Sequence[int]) -> None:
        if not self.inner.consume_tokens(list(token_ids)):
            raise RequestError(
                f"structured_outputs: the grammar can't go on: {_one_line(self.inner.get_error())}",
                param="structured_outputs",
            )


def _grammar(asked: StructuredOutputs) -> str:
    """Return llguidance's own form of a demand; a ValueError says what is wrong with it."""
    if asked.json_object or asked.json is not None:
        schema = '{"type":"object"}' if asked.json is None else str(asked.json)
        return LLMatcher.grammar_from_json_schema(schema, overrides=cast("Any", _JSON_OPTIONS))
    if asked.regex is not None:
        return LLMatcher.grammar_from_regex(asked.regex)
    if asked.choice is not None:
        words = " | ".join(json.dumps(text, ensure_ascii=False) for text in asked.choice)
        return LLMatcher.grammar_from_lark(f"start: {words}")
    return str(llguidance.grammar_from("grammar", asked.grammar or ""))


def _one_line(message: str) -> str:
    return " ".join(message.split())[:500]
