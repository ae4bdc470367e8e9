"""Rotary position embedding (RoPE, arXiv:2104.09864), halves rotated against each other.

Dimension i of a head is paired with dimension i + R/2; R, the rotated part, comes first and is
the whole head unless the model rotates only a part of it.
"""

from __future__ import annotations

import torch


def rotary_table(inv_freq: torch.Tensor, length: int, scale: float = 1.0) -> torch.Tensor:
    """Return cosines and sines of every position, computed in float32.

    Args:
        inv_freq: [R / 2] float32, radians per position.
        length: positions, from 0.
        scale: factor on both (YaRN and LongRoPE scale attention this way).

    Returns:
        [length, R] float32: R / 2 cosines, then R / 2 sines.
    """
    angles = torch.outer(
        torch.arange(length, dtype=torch.float32, device=inv_freq.device), inv_freq
    )
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)


def rotary_at(table: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Look positions up, once a step, in the form that `apply_rotary` takes.

    Args:
        table: [length, R], from `rotary_table`, in the model's dtype.
        positions: [T] int64, below `length`.

    Returns:
        cosines and signed sines, [T, 1, R] each.
    """
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first R dimensions of every head; the others pass through.

    Args:
        x: [T, N, D].
        cos: [T, 1, R], R at most D.
        sin: [T, 1, R], the first half negated.

    Returns:
        [T, N, D].
    """
    size = cos.shape[-1]
    part = x[..., :size]
    turned = part * cos + part.roll(size // 2, dims=-1) * sin
    return turned if size == x.shape[-1] else torch.cat((turned, x[..., size:]), dim=-1)
