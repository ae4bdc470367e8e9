"""The largest logit of each row and its token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.ops import likeliest


def likeliest_token(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest logit and the lowest id that has it; NaN counts as largest.

    Args:
        logits: [N, V] of any floating dtype.

    Returns:
        [N] values and [N] int64 token ids.
    """
    if logits.device.type != "cpu":
        tokens, numbers = likeliest(logits)
        return numbers[1], tokens
    # On the CPU numpy's is vectorised and torch's isn't: 0.05 ms to 0.65 for 16 x 49152.
    array = logits.float().numpy()
    where = array.argmax(-1, keepdims=True)
    values = torch.from_numpy(np.take_along_axis(array, where, axis=-1)[:, 0])
    return values, torch.from_numpy(where[:, 0].astype(np.int64, copy=False))
