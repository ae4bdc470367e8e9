"""The memory of simulated graphs: a pool that hands dead tensors' memory out again.

CUDA graphs that share a pool share memory: what one recording no longer refers to, the next one
uses. A strategy that relies on memory which nothing keeps is wrong there, and must be wrong here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import StorageWeakRef

_ALIGNMENT = 64


def poison(tensor: torch.Tensor) -> None:
    """Overwrite a tensor with what no computation survives unnoticed: NaN, the largest number."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


@dataclass
class _Block:
    """Memory, and the storage of the tensor that was made in it last."""

    memory: NDArray[np.uint8]
    user: Any = None

    @property
    def free(self) -> bool:
        return self.user is None or bool(self.user.expired())


class Pool:
    """Blocks of memory for what recorded operators write; a block is free when its tensor died.

    Memory is never given back, so that an address stays valid for as long as a graph may use it.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._foreign: list[tuple[Any, Any]] = []
        """Owner and alias of memory that isn't the pool's."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum((block.memory.nbytes for block in self._blocks.values()), start=0)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor lies in the pool."""
        return tensor.untyped_storage().data_ptr() in self._blocks

    def allocate(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return a poisoned tensor in the smallest free block that holds it."""
        last = sum((count - 1) * step for count, step in zip(size, stride, strict=True))
        needed = (1 + last) * dtype.itemsize if all(size) else 1
        fitting = [b for b in self._blocks.values() if b.free and b.memory.nbytes >= needed]
        block = min(fitting, key=lambda b: b.memory.nbytes) if fitting else self._add(needed)
        whole = torch.from_numpy(block.memory)
        block.user = StorageWeakRef(whole.untyped_storage())
        tensor = whole.view(dtype).as_strided(tuple(size), tuple(stride), 0)
        poison(tensor)
        return tensor

    def _add(self, needed: int) -> _Block:
        block = _Block(np.zeros(-(-needed // _ALIGNMENT) * _ALIGNMENT, dtype=np.uint8))
        self._blocks[block.memory.ctypes.data] = block
        return block

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor over the same memory that keeps nothing alive."""
        storage = tensor.untyped_storage()
        block = self._blocks.get(storage.data_ptr())
        if block is not None:
            whole = torch.from_numpy(block.memory)
        elif storage.nbytes() == 0:
            return tensor
        else:
            memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            pair = StorageWeakRef(storage), StorageWeakRef(whole.untyped_storage())
            self._foreign.append(pair)
        return whole.view(tensor.dtype).as_strided(
            tensor.size(), tensor.stride(), tensor.storage_offset()
        )

    def check_aliases(self) -> None:
        """Check that nobody holds an alias of memory that was freed.

        Raises:
            RuntimeError: somebody does.
        """
        self._foreign = [pair for pair in self._foreign if not pair[1].expired()]
        if any(owner.expired() for owner, _ in self._foreign):
            raise RuntimeError(
                "a strategy kept an alias of memory outside the pool that was freed since; keep "
                "the tensor itself"
            )


class Address:
    """A tensor outside the pool, by address: what a recorded operator reads at each replay.

    Args:
        tensor: not kept alive.
        reader: the operator, for messages.
    """

    def __init__(self, tensor: torch.Tensor, reader: str) -> None:
        storage = tensor.untyped_storage()
        self._weak, self._at = StorageWeakRef(storage), storage.data_ptr()
        self._view = tensor.storage_offset(), tensor.size(), tensor.stride()
        self._dtype, self._inference, self._reader = tensor.dtype, tensor.is_inference(), reader

    def tensor(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: its memory was freed or moved since the recording.
        """
        # What torch.multiprocessing goes back from a weak reference by; there is no public way.
        storage = torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)  # noqa: SLF001 - as said
        if storage is None or storage.data_ptr() != self._at:
            fate = "freed" if storage is None else "moved"
            raise RuntimeError(
                f"operator {self._reader} was recorded with a tensor of shape "
                f"{list(self._view[1])} whose memory was {fate} since; a graph reads addresses, "
                "so inputs must be static"
            )
        # The same kind of tensor as was recorded, or a compiled callable's guards would fail.
        with torch.inference_mode(self._inference):
            return torch.empty(0, dtype=self._dtype).set_(storage, *self._view)
