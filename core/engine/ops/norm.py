"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return `weight * x / sqrt(mean(x²) + eps)` over the last dimension (arXiv:1910.07467).

    The normalisation is computed in float32 and rounded to the dtype of `x` before the weight is
    applied, as the Llama family was trained.

    Args:
        x: [..., H].
        weight: [H].
        eps: added to the mean square.
    """
    return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype) * weight
