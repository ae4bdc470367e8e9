"""A dense float64 reference, and a paged history to compare with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from engine.attention import AttentionInputs, AttentionSpec
from engine.testing.paged import attention_inputs
from engine_attention_sdpa.attention import SdpaAttention


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
) -> torch.Tensor:
    """Attend in float64: query [n, H, D] is the end of key and value [S, K, D]."""
    count, length = query.shape[0], key.shape[0]
    group = spec.num_heads // spec.num_kv_heads
    q = query.double().transpose(0, 1)
    k = key.double().transpose(0, 1).repeat_interleave(group, 0)
    v = value.double().transpose(0, 1).repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    keys = torch.arange(length, device=query.device)
    at = keys[length - count :].unsqueeze(1)
    seen = keys <= at
    if spec.sliding_window is not None:
        seen &= keys > at - spec.sliding_window
    scores = scores.masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


@dataclass
class Stored:
    """One sequence's blocks and everything that was stored for it."""

    table: list[int] = field(default_factory=list)
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    length: int = 0


class History:
    """Steps random keys and values through the plugin and through the reference."""

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        dtype: torch.dtype = torch.float32,
        block_size: int = 4,
        num_blocks: int = 256,
        shuffle: int | None = None,
        fill: float = float("nan"),
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.spec, self.dtype, self.block_size = spec, dtype, block_size
        self.plugin = SdpaAttention()
        shape = self.plugin.cache_shape(spec, num_blocks, block_size)
        self.cache = torch.full(shape, fill, dtype=dtype, device=device)
        self.device = device
        free = np.arange(1, num_blocks)
        if shuffle is not None:
            np.random.default_rng(shuffle).shuffle(free)
        self.free: list[int] = free.tolist()
        self.sequences: list[Stored] = []
        self.generator = torch.Generator().manual_seed(seed)

    def random(self, *shape: int) -> torch.Tensor:
        made = torch.randn(*shape, generator=self.generator)
        return made.to(device=self.device, dtype=self.dtype)

    def add(self) -> int:
        self.sequences.append(Stored())
        return len(self.sequences) - 1

    def inputs(self, rows: Sequence[tuple[int, int]], padding: int = 0) -> AttentionInputs:
        for index, count in rows:
            sequence = self.sequences[index]
            sequence.length += count
            while len(sequence.table) * self.block_size < sequence.length:
                sequence.table.append(self.free.pop(0))
        taken = [self.sequences[index] for index, _ in rows]
        return attention_inputs(
            [count for _, count in rows],
            [s.length for s in taken],
            [s.table for s in taken],
            self.block_size,
            padding=padding,
            device=self.device,
        )

    def step(
        self, rows: Sequence[tuple[int, int]], *, padding: int = 0
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Append tokens to sequences; return (result, reference) of each row.

        Padded rows bring NaN.
        """
        inputs = self.inputs(rows, padding)
        total, spec = sum(count for _, count in rows), self.spec
        query = self.random(total + padding, spec.num_heads, spec.head_size)
        key = self.random(total + padding, spec.num_kv_heads, spec.head_size)
        value = self.random(total + padding, spec.num_kv_heads, spec.head_size)
        for tensor in (query, key, value):
            tensor[total:] = float("nan")
        out = torch.full_like(query, float("nan"))
        metadata = self.plugin.begin_step(inputs)
        self.plugin.forward(query, key, value, out, self.cache, spec, metadata)
        assert out[total:].isfinite().all()
        pairs, start = [], 0
        for index, count in rows:
            sequence, mine = self.sequences[index], slice(start, start + count)
            sequence.keys.append(key[mine])
            sequence.values.append(value[mine])
            history = torch.cat(sequence.keys), torch.cat(sequence.values)
            pairs.append((out[mine].cpu(), dense(query[mine], *history, spec).cpu()))
            start += count
        return pairs


@pytest.fixture
def history() -> Callable[..., History]:
    """Make a `History`; see there for the arguments."""
    return History
