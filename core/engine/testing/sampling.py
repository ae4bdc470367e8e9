"""Sequences and logits to sample from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Ids
from typing import Any

import torch

from engine.request import EngineRequest
from engine.runtime.sampler import SampledToken, Sampler
from engine.runtime.sequence import Sequence
from engine.sampling_params import SamplingParams

VOCAB_SIZE = 700
_numbers = itertools.count()


def sequence(
    *, prompt: Ids[int] = (1,), output: Ids[int] = (), ends: Ids[int] = (), **params: Any
) -> Sequence:
    """Return a sequence with a fresh id, as the scheduler would hold it.

    Args:
        prompt: its token ids.
        output: token ids made so far.
        ends: end tokens of the model.
        **params: fields of `SamplingParams`.
    """
    request = EngineRequest(
        request_id=f"request-{next(_numbers)}",
        prompt_token_ids=list(prompt),
        params=SamplingParams(max_tokens=None, **params),
        end_token_ids=list(ends),
    )
    made = Sequence(request)
    for token in output:
        made.append(token)
    return made


def sampler(seed: int = 0) -> Sampler:
    """Return a fresh sampler on the CPU."""
    return Sampler(VOCAB_SIZE, torch.device("cpu"), seed)


def sample_one(logits: torch.Tensor, one: Sequence) -> SampledToken:
    """Sample one sequence from [V] logits with a fresh sampler."""
    return sampler().sample(logits[None], [one])[0]


def peaked(*shape: int) -> torch.Tensor:
    """Return logits [*shape, V] as models give them: a few likely tokens and a long tail."""
    return torch.randn(*shape, VOCAB_SIZE) * 4
