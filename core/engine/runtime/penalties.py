"""Repetition, presence and frequency penalties, from token counts that grow with the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.request import EngineRequest


class TokenHistory(Protocol):
    """What is read of a sequence."""

    @property
    def request(self) -> EngineRequest: ...  # noqa: D102 - the sequence's request
    @property
    def token_ids(self) -> list[int]: ...  # noqa: D102 - prompt and output
    @property
    def num_prompt_tokens(self) -> int: ...  # noqa: D102 - the first of token_ids


class Penalties:
    """Applies penalties to the rows of sequences that ask for them.

    Only tokens that occur in a sequence are touched: a step counts the tokens that are new and
    changes as many logits as there are different tokens. Nothing of the size of the vocabulary is
    kept. The counts don't depend on what is computed, so preemption doesn't touch them.

    Args:
        device: of the logits.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._counts: dict[str, _Counts] = {}

    def forget(self, request_id: str) -> None:
        """Drop a sequence's counts; unknown ones are ignored."""
        self._counts.pop(request_id, None)

    def apply(self, logits: Tensor, rows: list[int], sequences: Sequence[TokenHistory]) -> None:
        """Change rows of logits in place.

        Args:
            logits: [N, V] float32.
            rows: P row numbers.
            sequences: the P sequences of these rows.
        """
        counts = [self._count(sequence) for sequence in sequences]
        row = np.repeat(rows, [each.size for each in counts])
        ids = np.concatenate([each.ids[: each.size] for each in counts])
        number = np.concatenate([each.in_output[: each.size] for each in counts])
        where = torch.from_numpy(np.stack([row, ids, number])).to(self._device)
        # Penalties by row number, so that `where` alone picks them too.
        table = torch.ones((3, logits.shape[0]))
        table[:, rows] = torch.tensor([_penalties(sequence) for sequence in sequences]).T
        repetition, presence, frequency = table.to(self._device)[:, where[0]]
        values = logits[where[0], where[1]]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * where[2] + presence * (where[2] > 0)
        logits.index_put_((where[0], where[1]), values)

    def _count(self, sequence: TokenHistory) -> _Counts:
        request_id = sequence.request.request_id
        counts = self._counts.get(request_id)
        if counts is None:
            counts = self._counts[request_id] = _Counts(sequence)
        counts.update(sequence.token_ids)
        return counts


def _penalties(sequence: TokenHistory) -> tuple[float, float, float]:
    params = sequence.request.params
    return params.repetition_penalty, params.presence_penalty, params.frequency_penalty


class _Counts:
    """The different tokens of a sequence and how often each is in its output.

    Attributes:
        size: how many there are; the arrays have room for more.
        ids: int64 token ids, in the order of their first appearance after the prompt's.
        in_output: int64 counts; 0 for a token that is in the prompt only.
    """

    def __init__(self, sequence: TokenHistory) -> None:
        self._counted = sequence.num_prompt_tokens
        # The prompt only matters for repetition.
        repetition = sequence.request.params.repetition_penalty != 1
        prompt = sequence.token_ids[: self._counted] if repetition else []
        found = np.unique(np.array(prompt, dtype=np.int64))
        self.size = len(found)
        self.ids = _with_room(found)
        self.in_output = np.zeros_like(self.ids)
        self._where = dict(zip(found.tolist(), range(self.size), strict=True))

    def update(self, token_ids: list[int]) -> None:
        """Count the tokens that are new since the last time."""
        for token in token_ids[self._counted :]:
            position = self._where.setdefault(token, self.size)
            if position == self.size:
                self._append(token)
            self.in_output[position] += 1
        self._counted = len(token_ids)

    def _append(self, token: int) -> None:
        if self.size == len(self.ids):
            self.ids, self.in_output = _with_room(self.ids), _with_room(self.in_output)
        self.ids[self.size] = token
        self.size += 1


def _with_room(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the array with zeros for at least as much again."""
    return np.concatenate([array, np.zeros(max(len(array), 64), np.int64)])
