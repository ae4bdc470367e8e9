"""Which recorded shape covers a batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from engine.batch import BatchShape

RECORDING_SETTINGS = frozenset(
    {
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "capture_size_policy",
        "capture",
        "on_capture_failure",
        "debug_graphs",
    }
)
"""The settings that every strategy that records reads."""


def mixed_shape(num_tokens: int, max_num_seqs: int) -> BatchShape:
    """Return the padded shape that covers every batch of up to `num_tokens` tokens."""
    return BatchShape(num_tokens, min(num_tokens, max_num_seqs), num_tokens, uniform_decode=False)


class ShapeTable:
    """Finds the smallest recorded shape that covers a number of tokens; one list look-up."""

    def __init__(self, shapes: Iterable[BatchShape]) -> None:
        by_tokens = {shape.num_tokens: shape for shape in shapes}
        sizes = sorted(by_tokens)
        top = sizes[-1] if sizes else -1
        self._covering = [by_tokens[sizes[bisect_left(sizes, n)]] for n in range(top + 1)]

    def cover(self, num_tokens: int) -> BatchShape | None:
        """Return the shape to pad to, or None when the batch is larger than all."""
        return self._covering[num_tokens] if num_tokens < len(self._covering) else None
