"""What one step looks like to a strategy. No tensors, nothing of ours imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The shape of one step: hashable, comparable, known before any input is built.

    Attributes:
        num_tokens: rows of `input_ids`; the sum of the query lengths.
        num_reqs: requests in the batch.
        max_query_len: the longest query, in tokens.
        uniform_decode: every request contributes `max_query_len` tokens and already has its
            prompt computed.
    """

    num_tokens: int
    num_reqs: int
    max_query_len: int
    uniform_decode: bool

    @classmethod
    def decode(cls, num_reqs: int) -> BatchShape:
        """Return the shape of `num_reqs` requests that decode one token each."""
        return cls(num_reqs, num_reqs, 1, uniform_decode=True)
