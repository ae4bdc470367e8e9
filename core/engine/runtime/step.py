"""What one step computes, and what it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.batch import BatchShape
from engine.request import PositionLogprobs
from engine.runtime.sequence import Sequence, State


class Sampled(Protocol):
    """What a step made of one row (the sampler's `SampledToken`).

    Attributes:
        token_id: the sampled token; anything when the row doesn't sample.
        logprobs: of that token, when asked for.
        prompt_logprobs: of the prompt tokens that the row's positions predict, when asked for.
        embedding: of the prompt that the row ends, when asked for.
    """

    @property
    def token_id(self) -> int: ...  # noqa: D102 - described above
    @property
    def logprobs(self) -> PositionLogprobs | None: ...  # noqa: D102 - likewise
    @property
    def prompt_logprobs(self) -> list[PositionLogprobs] | None: ...  # noqa: D102 - likewise
    @property
    def embedding(self) -> list[float] | None: ...  # noqa: D102 - likewise


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens of one sequence that a step computes.

    Attributes:
        sequence: whose tokens; the first is at `sequence.num_computed_tokens`.
        num_tokens: how many.
    """

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the sequence's last token, so that the next one is sampled.

        Never for a sequence that makes no tokens (`max_tokens` 0).
        """
        sequence = self.sequence
        length = len(sequence.token_ids)
        end = sequence.num_computed_tokens + self.num_tokens
        return end == length and length < sequence.max_length


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: rows that decode come first, then those that compute their prompt.

    Attributes:
        rows: at most one for each sequence.
        shape: of these rows; decode is uniform only when every row decodes a single token.
        preempted: sequences that lost their blocks while the step was put together.
        ahead: each row decodes a token that the step before makes and that isn't known yet, so
            that the rows' sequences are one token further than they say.
    """

    rows: tuple[Row, ...]
    shape: BatchShape
    preempted: int = 0
    ahead: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether any of the sequences still runs."""
        return any(row.sequence.state is State.RUNNING for row in self.rows)
