"""The contract of a grammar library: which tokens may come next, so that the text fits a demand.

Shapes: V vocabulary, R rows of a step that are constrained. A mask is packed: bit `i % 32` of
word `i // 32` says whether token `i` may come next, as the field's libraries write it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.plugin import Plugin

if TYPE_CHECKING:
    from engine.structured_outputs import StructuredOutputs

Mask = np.ndarray[tuple[int, int], np.dtype[np.int32]]
"""Packed, [R, ceil(V / 32)]."""


class Matcher(ABC):
    """How far one sequence has come in its grammar."""

    @abstractmethod
    def accept(self, token_ids: Sequence[int]) -> None:
        """Take tokens in that were chosen, in order; they were allowed by the masks before.

        Raises:
            RequestError: the grammar can't go on (a limit of the library); says why.
        """


class Grammar(ABC):
    """A compiled demand; shared by all sequences that make it."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """Return a matcher at the beginning."""


class GrammarPlugin(Plugin):
    """Compiles demands and computes masks for one tokenizer.

    `compile` runs on a thread of its own while the loop goes on; the other methods are called by
    the loop, so they must be fast.
    """

    @abstractmethod
    def load(self, tokenizer: Any, *, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        """Get ready for a model; called once, before anything is compiled.

        Args:
            tokenizer: a transformers fast tokenizer.
            vocab_size: V.
            end_token_ids: tokens that are allowed where the text may end; at least one.

        Raises:
            RequestError: the library can't read this tokenizer.
        """

    @abstractmethod
    def compile(self, asked: StructuredOutputs) -> Grammar:
        """Compile a demand.

        Raises:
            RequestError: it is invalid, or asks for what the library doesn't support; says what.
        """

    @abstractmethod
    def fill(self, matchers: Sequence[Matcher], mask: Mask) -> None:
        """Write the tokens that may come next for each matcher into the row of its index."""
