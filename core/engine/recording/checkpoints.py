"""Finds the first place where a replay and the same step without graphs part.

Both runs leave a copy of what every break op reads and writes. The first copies that differ name
the segment: a difference in what a break op reads comes from the segment before it, one in what it
writes from the operator itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.ops import written_arguments

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
"""Largest difference that rounding explains, relative to the largest value; by dtype."""
_COARSE = 3e-2


@dataclass(frozen=True)
class Checkpoint:
    """Copies of tensors at one place of a forward pass.

    Attributes:
        label: the place, for messages.
        tensors: what was seen there; the first dimension of each is the step's tokens, or not.
    """

    label: str
    tensors: tuple[torch.Tensor, ...]

    def copy(self) -> Checkpoint:
        """Return a checkpoint of its own memory."""
        return Checkpoint(self.label, tuple(tensor.clone() for tensor in self.tensors))


class Probe:
    """A recorder that breaks nothing: it copies what break ops read and write.

    In force while a pass is recorded, the copies are made by the graph, anew at each replay.

    Attributes:
        checkpoints: two for each break op, in order.
    """

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Run the operator between two copies."""
        self.look(op, args, after=False)
        call(*args)
        self.look(op, args, after=True)

    def look(self, op: str, args: tuple[Any, ...], *, after: bool) -> Checkpoint:
        """Copy what an operator reads (before), or what it wrote (after)."""
        number = len(self.checkpoints) // 2 + 1
        label = f"{'after' if after else 'before'} {op} #{number}"
        chosen = observed(op, args, after=after)
        self.checkpoints.append(Checkpoint(label, tuple(tensor.clone() for tensor in chosen)))
        return self.checkpoints[-1]


def observed(op: str, args: Sequence[Any], *, after: bool) -> list[torch.Tensor]:
    """Return the tensors that a break op reads, or those that it writes."""
    written = written_arguments(op, len(args))
    return [
        arg
        for arg, is_written in zip(args, written, strict=True)
        if isinstance(arg, torch.Tensor) and is_written == after
    ]


def first_divergence(
    expected: Sequence[Checkpoint], found: Sequence[Checkpoint], num_tokens: int, num_padded: int
) -> str:
    """Return where two passes part first, with the size of the difference; empty if nowhere.

    Args:
        expected: of the step without graphs.
        found: of the replay.
        num_tokens: live tokens; padded rows may hold anything.
        num_padded: tokens with the padding, by which rows of tokens are recognised.
    """
    if len(expected) != len(found):
        return f"the number of break ops: {len(expected)} expected, {len(found)} recorded"
    for wanted, seen in zip(expected, found, strict=True):
        for index, (a, b) in enumerate(zip(wanted.tensors, seen.tensors, strict=True)):
            if a.shape != b.shape:
                return f"{wanted.label}, tensor {index}: shapes {list(a.shape)}, {list(b.shape)}"
            live = slice(num_tokens if a.ndim and a.shape[0] == num_padded else None)
            if difference := _difference(a[live], b[live]) if a.ndim else _difference(a, b):
                return f"{wanted.label}, tensor {index}: {difference}"
    return ""


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if not a.is_floating_point():
        return "" if torch.equal(a, b) else "the values differ"
    if a.numel() == 0:
        return ""
    wide_a, wide_b = a.double(), b.double()
    if not torch.equal(wide_a.isnan(), wide_b.isnan()):
        return "NaN where there was none, or none where there was"
    gap = float((wide_a - wide_b).nan_to_num(0.0).abs().max())
    largest = float(wide_a.nan_to_num(0.0).abs().max())
    if gap <= _TOLERANCE.get(a.dtype, _COARSE) * max(1.0, largest):
        return ""
    return f"largest difference {gap:.3g} among values up to {largest:.3g}"
