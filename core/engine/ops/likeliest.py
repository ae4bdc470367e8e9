"""The likeliest token of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.ops.operator import operator

_BLOCKS = 96
"""Blocks at most in which the reference looks for the largest logit."""


def _launch() -> Callable[..., Any]:
    from engine.ops import launches

    return launches.likeliest


def _fake(logits: Tensor) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=torch.int64),
        logits.new_empty((2, rows), dtype=torch.float64),
    )


@operator("engine::likeliest", fake=_fake, cuda=_launch)
def likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's likeliest token, and it and its logit as numbers to read back at once.

    Args:
        logits: [N, V], of any floating dtype. NaN counts as the largest; of equals the lowest id
            is taken.

    Returns:
        [N] int64, and [2, N] float64 with the tokens in the first row, which holds them exactly,
        and their logits in the second.
    """
    size = logits.shape[1]
    # One row alone keeps a GPU's processors idle, so the largest of each block comes first.
    count = next(n for n in range(_BLOCKS, 0, -1) if size % n == 0)
    values, ids = logits.unflatten(1, (count, -1)).max(-1)
    top, block = values.max(-1, keepdim=True)
    tokens = (block * (size // count) + ids.gather(1, block))[:, 0]
    return tokens, torch.stack((tokens.double(), top[:, 0].double()))
