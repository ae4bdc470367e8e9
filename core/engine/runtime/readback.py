"""Numbers on their way from the device to the host, while the device goes on with other work."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Readback:
    """Copies tensors to the host in one piece; asking for them waits for what made them.

    Args:
        columns: of any dtype; float64, in which they travel, holds them exactly.
    """

    def __init__(self, columns: Sequence[torch.Tensor]) -> None:
        first = columns[0]
        if len(columns) == 1 and first.dtype == torch.float64 and first.device.type == "cuda":
            numbers = first.flatten()  # the copy to the host is copy enough
        else:
            numbers = torch.cat([column.flatten().double() for column in columns])
        self._arrived: torch.cuda.Event | None = None
        if numbers.device.type == "cuda":
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            pinned.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
            numbers = pinned
        self._numbers = numbers

    def read(self) -> list[float]:
        """Return all numbers, in the order of the columns."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()
