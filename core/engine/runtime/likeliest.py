"""The largest logit of each row and its token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_BLOCKS = 96
"""Blocks at most in which the largest logit is looked for."""


def likeliest_token(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest logit and the lowest id that has it; NaN counts as largest.

    Args:
        logits: [N, V] of any floating dtype.

    Returns:
        [N] values and [N] int64 token ids.
    """
    if logits.device.type != "cpu":
        return likeliest_in_blocks(logits)
    # On the CPU numpy's is vectorised and torch's isn't: 0.05 ms to 0.65 for 16 x 49152.
    array = logits.float().numpy()
    where = array.argmax(-1, keepdims=True)
    values = torch.from_numpy(np.take_along_axis(array, where, axis=-1)[:, 0])
    return values, torch.from_numpy(where[:, 0].astype(np.int64, copy=False))


def likeliest_in_blocks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Find the largest of each block first: one row alone keeps a GPU's processors idle.

    41 us to 13 for one row of 128256 in bfloat16 on an H200.
    """
    size = logits.shape[1]
    count = next(n for n in range(_BLOCKS, 0, -1) if size % n == 0)
    values, ids = logits.unflatten(1, (count, -1)).max(-1)
    top, block = values.max(-1, keepdim=True)
    return top[:, 0], (block * (size // count) + ids.gather(1, block))[:, 0]
