"""The rule for token counts that are worth a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.strategies import CaptureSizePolicy


class DefaultSizes(CaptureSizePolicy):
    """1, 2, 4, then steps of 8 up to 256 and of 16 above, up to the limit.

    Padding then wastes at most half a step's rows at the very small sizes, where a row is nearly
    free, and at most 8 or 16 rows above. The limit itself and the number of sequences are always
    among the sizes, so that a full batch is never padded.
    """

    NAME = "default"
    SUMMARY = "1, 2, 4, then steps of 8 to 256 and of 16 above; the full batch exactly"

    def sizes(self, limits: Mapping[str, int]) -> Sequence[int]:
        """Return the sizes; `limits` has `max_num_seqs`, `max_num_tokens` and `max_size`."""
        top = min(limits["max_size"], limits["max_num_tokens"])
        candidates = [1, 2, 4, *range(8, 257, 8), *range(272, top + 1, 16), top]
        candidates.append(limits["max_num_seqs"])
        return sorted({size for size in candidates if size <= top})
