"""Runs a model with an attention implementation over a paged cache, without the runtime.

Everything a test of either wants to vary is an argument: the order in which blocks are handed
out, what unwritten memory holds, how many padded rows a step has.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from engine.attention import AttentionInputs, AttentionPlugin
from engine.batch import BatchShape
from engine.forward_context import ForwardContext, forward_context
from engine.models import CausalLM
from engine.strategies import ModelCall


def attention_inputs(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    tables: Sequence[Sequence[int]],
    block_size: int,
    *,
    padding: int = 0,
    device: torch.device | str = "cpu",
) -> AttentionInputs:
    """Describe a step as the runner would.

    Args:
        query_lens: tokens of each request in this step.
        seq_lens: tokens of each request including those of this step.
        tables: the blocks of each request.
        block_size: tokens in one block.
        padding: rows beyond the live ones, both of tokens and of requests.
        device: where the device tensors are.
    """
    count, total = len(query_lens), sum(query_lens)
    query_start = np.zeros(count + 1, dtype=np.int32)
    query_start[1:] = np.cumsum(query_lens)
    width = max((len(table) for table in tables), default=0)
    host_tables = np.zeros((count, max(width, 1)), dtype=np.int32)
    slots: list[int] = []
    for row, (length, end, table) in enumerate(zip(query_lens, seq_lens, tables, strict=True)):
        host_tables[row, : len(table)] = table
        slots += [
            table[position // block_size] * block_size + position % block_size
            for position in range(end - length, end)
        ]
    host_lens = np.asarray(seq_lens, dtype=np.int32)

    def padded(array: np.ndarray[tuple[int, ...], np.dtype[np.int32]], value: int) -> torch.Tensor:
        extra = [(0, padding)] + [(0, 0)] * (array.ndim - 1)
        return torch.from_numpy(np.pad(array, extra, constant_values=value)).to(device)

    longest = max(query_lens, default=0)
    decode = longest == 1 and all(end > 1 for end in seq_lens)
    return AttentionInputs(
        shape=BatchShape(total, count, longest, uniform_decode=decode),
        query_start=padded(query_start, total),
        seq_lens=padded(host_lens, 0),
        block_tables=padded(host_tables, 0),
        slots=torch.tensor(slots + [-1] * padding, dtype=torch.int64, device=device),
        block_size=block_size,
        host_query_start=query_start,
        host_seq_lens=host_lens,
        host_block_tables=host_tables,
    )


class PagedRunner:
    """Keeps sequences, their blocks and the caches; each `forward` is one step.

    Args:
        model: its weights are loaded.
        attention: the implementation under test.
        num_blocks: blocks of the cache, the reserved block 0 included.
        block_size: tokens in one block.
        shuffle: seed of the order in which blocks are handed out; ascending when omitted.
        fill: what the cache holds before it is written; NaN shows a read of unwritten memory.
        padding: padded rows in each step.
        call: what to run instead of the model, for instance its compiled form.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: AttentionPlugin,
        num_blocks: int = 64,
        block_size: int = 16,
        *,
        shuffle: int | None = None,
        fill: float = 0.0,
        padding: int = 0,
        call: ModelCall | None = None,
    ) -> None:
        parameter = next(model.parameters())
        self.model, self.attention, self.block_size = model, attention, block_size
        self.caches = [
            torch.full(
                attention.cache_shape(spec, num_blocks, block_size),
                fill,
                dtype=parameter.dtype,
                device=parameter.device,
            )
            for spec in model.attention_specs
        ]
        self.tables: dict[Hashable, list[int]] = {}
        self.lengths: dict[Hashable, int] = {}
        self._call = call if call is not None else model
        self._device = parameter.device
        self._padding = padding
        free = np.arange(1, num_blocks)
        if shuffle is not None:
            np.random.default_rng(shuffle).shuffle(free)
        self._free: list[int] = free.tolist()

    def forward(self, chunks: Sequence[tuple[Hashable, Sequence[int]]]) -> list[torch.Tensor]:
        """Run one step.

        Args:
            chunks: sequences and the tokens to append to each, in the order of the batch.

        Returns:
            hidden [n, H] of each chunk's tokens.

        Raises:
            RuntimeError: the cache has no free block left.
        """
        query_lens = [len(tokens) for _, tokens in chunks]
        ids: list[int] = []
        positions: list[int] = []
        for name, tokens in chunks:
            start = self.lengths.get(name, 0)
            self._grow(name, start + len(tokens))
            ids += tokens
            positions += range(start, start + len(tokens))
        ids += [0] * self._padding
        positions += [0] * self._padding
        names = [name for name, _ in chunks]
        inputs = attention_inputs(
            query_lens,
            [self.lengths[name] for name in names],
            [self.tables[name] for name in names],
            self.block_size,
            padding=self._padding,
            device=self._device,
        )
        context = ForwardContext(
            shape=inputs.shape,
            attention=self.attention,
            metadata=self.attention.begin_step(inputs),
            specs=self.model.attention_specs,
            caches=self.caches,
        )
        with torch.inference_mode(), forward_context(context):
            hidden = self._call(
                torch.tensor(ids, device=self._device), torch.tensor(positions, device=self._device)
            )
        return list(hidden[: sum(query_lens)].split(query_lens))

    def logits(self, chunks: Sequence[tuple[Hashable, Sequence[int]]]) -> list[torch.Tensor]:
        """Run one step and return logits [n, V] of each chunk's tokens."""
        hidden = self.forward(chunks)
        with torch.inference_mode():
            return [self.model.compute_logits(rows) for rows in hidden]

    def greedy(
        self, prompt: Sequence[int], count: int, *, chunk_size: int | None = None
    ) -> list[int]:
        """Return the `count` likeliest next tokens, the prompt computed in chunks if asked."""
        name = object()
        size = chunk_size or len(prompt)
        for start in range(0, len(prompt), size):
            (last,) = self.logits([(name, prompt[start : start + size])])
        tokens = [int(last[-1].argmax())]
        while len(tokens) < count:
            (last,) = self.logits([(name, tokens[-1:])])
            tokens.append(int(last[-1].argmax()))
        self.release(name)
        return tokens

    def release(self, name: Hashable) -> None:
        """Forget a sequence; its blocks are handed out next, what they hold stays."""
        self._free = self.tables.pop(name) + self._free
        del self.lengths[name]

    def _grow(self, name: Hashable, length: int) -> None:
        table = self.tables.setdefault(name, [])
        missing = -(-length // self.block_size) - len(table)
        if missing > len(self._free):
            raise RuntimeError(f"{missing} blocks needed, {len(self._free)} are free")
        table += [self._free.pop(0) for _ in range(missing)]
        self.lengths[name] = length
