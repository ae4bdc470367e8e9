"""A step that runs on the device while the host does something else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.request import PositionLogprobs
from engine.runtime.sampler import SampledToken, Sampling
from engine.runtime.sequence import Sequence
from engine.runtime.step import Row


@dataclass(frozen=True)
class Launched:
    """A step that was started on the device.

    Attributes:
        sequences: those that get a token, in the order of the tokens.
        sampled: the tokens; None when no row samples.
        prompts: log-probabilities of prompt tokens, by request id, where they were asked for.
        embeddings: of prompts that end, by request id, where they were asked for.
        errors: why a sequence can't go on, by request id.
    """

    sequences: tuple[Sequence, ...]
    sampled: Sampling | None
    prompts: dict[str, list[PositionLogprobs]]
    embeddings: dict[str, list[float]]
    errors: dict[str, str]

    def tokens_of(self, rows: tuple[Row, ...]) -> torch.Tensor:
        """Return the tokens of these rows' sequences, [R] int64, on the device."""
        assert self.sampled is not None, "somebody samples"  # noqa: S101 - our own order
        tokens = self.sampled.tokens
        if len(rows) == len(self.sequences):  # the same, since the order never changes
            return tokens
        place = {id(sequence): index for index, sequence in enumerate(self.sequences)}
        index = [place[id(row.sequence)] for row in rows]
        return tokens[torch.tensor(index, device=tokens.device)]

    def collect(self) -> dict[str, SampledToken]:
        """Wait for the results and return them by request id.

        Rows that only compute a part of their prompt appear when prompt log-probabilities were
        asked for, and not otherwise.
        """
        read = self.sampled.read() if self.sampled is not None else []
        results = {
            sequence.request.request_id: token
            for sequence, token in zip(self.sequences, read, strict=True)
        }
        for request_id, message in self.errors.items():
            results[request_id] = replace(results[request_id], error=message)
        for request_id, chunk in self.prompts.items():
            token = results.get(request_id, SampledToken(token_id=-1))
            results[request_id] = replace(token, prompt_logprobs=chunk)
        for request_id, vector in self.embeddings.items():
            results[request_id] = SampledToken(token_id=-1, embedding=vector)
        return results
