"""Makes one vector of a prompt's hidden states, over as many steps as the prompt takes."""

from __future__ import annotations

import torch

from engine.runtime.step import Row


class Pooler:
    """Pools the hidden states of prompts that ask for it (`SamplingParams.pooling`).

    `mean` is the average over all tokens of the prompt, `last` the state of its last token. The
    vectors have length 1 (L2), as the similarity searches that they are made for expect.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, row: Row, hidden: torch.Tensor) -> list[float] | None:
        """Take a row's hidden states in.

        Args:
            row: some tokens of a prompt.
            hidden: [row.num_tokens, H], after the final norm.

        Returns:
            The vector, H numbers, when the row ends the prompt.
        """
        sequence = row.sequence
        kind, request_id = sequence.request.params.pooling, sequence.request.request_id
        if kind is None:
            return None
        done = sequence.num_computed_tokens + row.num_tokens == sequence.num_prompt_tokens
        if kind == "last":
            return _unit(hidden[-1].float()) if done else None
        total = hidden.float().sum(0)
        # After a preemption everything is computed, and counted, again.
        if sequence.num_computed_tokens and request_id in self._sums:
            total += self._sums[request_id]
        if not done:
            self._sums[request_id] = total
            return None
        self._sums.pop(request_id, None)
        return _unit(total)

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a sequence that has ended; unknown ones are ignored."""
        self._sums.pop(request_id, None)


def _unit(vector: torch.Tensor) -> list[float]:
    numbers: list[float] = (vector / vector.norm().clamp_min(1e-12)).tolist()
    return numbers
