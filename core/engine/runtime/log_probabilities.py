"""Log-probabilities of chosen tokens and of the likeliest ones, with ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.request import Logprob, PositionLogprobs
from engine.runtime.draw import SLACK, likeliest


def measure(logits: Tensor, token_ids: Tensor, k: int) -> Tensor:
    """Measure each row's token and its k likeliest ones, on the device.

    Args:
        logits: [N, V] float32.
        token_ids: [N] int64, the chosen ones.
        k: 0 or more; at most V are given.

    Returns:
        [N, 2 + 2k] float64: the chosen token's log-probability and rank, then k
        log-probabilities, then k token ids. Float64 holds all of them exactly, so that one copy
        takes them to the host. Equal log-probabilities are in the order of token ids, unless
        more than `SLACK` are equal to the last one.
    """
    k = min(k, logits.shape[1])
    norm = logits.logsumexp(-1, keepdim=True)
    token = token_ids[:, None]
    chosen = logits.gather(-1, token)
    ids = torch.arange(logits.shape[1], device=logits.device)
    # Among equals the lower id is first, as in the list of the likeliest.
    before = (logits > chosen) | ((logits == chosen) & (ids < token))
    columns = [(chosen - norm).double(), before.sum(-1, keepdim=True).double() + 1]
    if k:
        values, top_ids = likeliest(logits, k + SLACK)
        columns += [(values[:, :k] - norm).double(), top_ids[:, :k].double()]
    return torch.cat(columns, dim=-1)


def read(row: Sequence[float], token_id: int, k: int) -> PositionLogprobs:
    """Turn a row of `measure` into what users get.

    Forbidden tokens (log-probability of minus infinity) are left out of the likeliest ones.

    Args:
        row: 2 + 2K numbers.
        token_id: the chosen token.
        k: how many of the K likeliest are wanted.
    """
    width = len(row) // 2 - 1
    position = [Logprob(token_id, row[0], int(row[1]))]
    for rank in range(min(k, width)):
        if row[2 + rank] == -math.inf:
            break
        position.append(Logprob(int(row[2 + width + rank]), row[2 + rank], rank + 1))
    return position
