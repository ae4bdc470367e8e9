"""Logits and the likeliest token of each row of a decode step, recorded: one launch for twenty.

A small model's decode step takes a GPU less time than the host needs to launch what follows the
forward pass, operator by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from engine.graph_device import GraphDevice, RecordedGraph
from engine.ops import likeliest


@dataclass(frozen=True)
class _Recorded:
    graph: RecordedGraph
    tokens: torch.Tensor
    numbers: torch.Tensor


class GreedyHead:
    """Chooses greedy tokens from hidden states, for up to a number of rows.

    Args:
        compute_logits: `hidden [N, H] -> logits [N, V or more]`.
        vocab_size: V.
        hidden: [R, H], any values; its dtype and width are those of the hidden states, and R the
            most rows.
        device: records; it is inside no session.
    """

    def __init__(
        self,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
        vocab_size: int,
        hidden: torch.Tensor,
        device: GraphDevice,
    ) -> None:
        self._compute_logits, self._vocab_size = compute_logits, vocab_size
        # Its own: what a strategy's replay returns may be overwritten by the next one.
        self._hidden = torch.zeros_like(hidden)
        self._device = device
        self._recorded: dict[int, _Recorded] = {}
        self._size_of: list[int] = []

    def record(self, sizes: Collection[int]) -> None:
        """Record the head for these numbers of rows; a batch is padded to the next one."""
        for size in sorted(sizes, reverse=True):
            with self._device.session():
                self._run(size)
                self._device.begin()
                tokens, numbers = self._run(size)
                graph = self._device.end()
            if graph is not None:
                self._recorded[size] = _Recorded(graph, tokens, numbers)
        known = sorted(self._recorded)
        largest = known[-1] if known else -1
        self._size_of = [next(s for s in known if s >= n) for n in range(largest + 1)]

    def _run(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._compute_logits(self._hidden[:size])
        tokens, numbers = likeliest(logits[:, : self._vocab_size])
        return tokens, numbers

    def covers(self, rows: int) -> bool:
        """Say whether a batch of so many rows was recorded."""
        return rows < len(self._size_of)

    def run(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose each row's token.

        Args:
            hidden: [N, H]; may be overwritten.

        Returns:
            The tokens, [N] int64, and tokens and their logits, [2, N] float64; valid until the
            next run.
        """
        rows = len(hidden)
        recorded = self._recorded[self._size_of[rows]]
        self._hidden[:rows].copy_(hidden)
        recorded.graph.replay()
        return recorded.tokens[:rows], recorded.numbers[:, :rows]
