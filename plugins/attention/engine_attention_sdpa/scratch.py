"""Working memory that is kept from layer to layer and from step to step."""

from __future__ import annotations

import math

import torch


class Scratch:
    """Named buffers that grow to the largest size asked for."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return an uninitialised tensor; it is overwritten by the next `take` of that name."""
        size = math.prod(shape)
        key = (name, dtype, device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            # Grow in powers of two, so that a context that gets longer seldom reallocates.
            buffer = torch.empty(1 << (size - 1).bit_length(), dtype=dtype, device=device)
            self._buffers[key] = buffer
        return buffer[:size].view(shape)
