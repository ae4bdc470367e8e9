"""Many short decoding requests, computed together.

The context of all requests is taken as one list of (block, request) pairs, N of them, in the
order of the pool. Scores, softmax and weighted values are computed pair by pair and summed up
per request, so that nothing is padded to the longest context and no Python runs per request.
Runs of blocks that follow each other are read in place; the rest is gathered, exactly once.

Shapes: R requests, N pairs, B block size, K key/value heads, G query heads of each, D head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.attention import AttentionSpec
    from engine_attention_sdpa.scratch import Scratch

_Part = tuple[slice, torch.Tensor]
"""Some of the pairs (which ones), and their keys or values [K, n, B, D]."""

MIN_RUN_TOKENS = 256
"""A shorter run costs less to copy than to be computed by calls of its own."""


class Group:
    """Attends requests of one token each; row i of the group is the step's token `tokens[i]`."""

    def __init__(
        self,
        *,
        tokens: NDArray[np.int64],
        lengths: NDArray[np.int64],
        tables: list[NDArray[np.int32]],
        block_size: int,
        window: int | None,
        device: torch.device,
        scratch: Scratch,
    ) -> None:
        self._scratch = scratch
        self._count = len(tokens)
        self._size = block_size
        together = bool((np.diff(tokens) == 1).all())
        self._rows = slice(int(tokens[0]), int(tokens[-1]) + 1) if together else None
        self._tokens = torch.from_numpy(tokens).to(device)
        self._owners_of_head: dict[int, torch.Tensor] = {}

        firsts = np.maximum(lengths - window, 0) if window is not None else np.zeros_like(lengths)
        heads, tails = firsts // block_size, -(-lengths // block_size)
        counts = tails - heads
        owners = np.repeat(np.arange(self._count), counts)
        blocks = np.concatenate(
            [table[head:tail] for table, head, tail in zip(tables, heads, tails, strict=True)]
        ).astype(np.int64)
        begins = np.cumsum(counts) - counts
        positions = (np.arange(len(blocks)) - np.repeat(begins - heads, counts)) * block_size
        order = self._arrange(blocks, device)
        self._owners = torch.from_numpy(owners[order]).to(device)
        self._bias = self._hide(positions[order], firsts[owners[order]], lengths[owners[order]])
        self._bias = self._bias.to(device)

    def _arrange(self, blocks: NDArray[np.int64], device: torch.device) -> NDArray[np.int64]:
        """Order the pairs: long runs of the pool first, then what has to be gathered."""
        order = np.argsort(blocks, kind="stable")
        cuts = np.flatnonzero(np.diff(blocks[order]) != 1) + 1
        runs = np.split(order, cuts)
        shortest = -(-MIN_RUN_TOKENS // self._size)
        long = [run for run in runs if len(run) >= shortest]
        rest = [run for run in runs if len(run) < shortest]
        self._runs: list[tuple[slice, slice]] = []
        done = 0
        for run in long:
            first = int(blocks[run[0]])
            self._runs.append((slice(done, done + len(run)), slice(first, first + len(run))))
            done += len(run)
        self._rest = slice(done, len(blocks))
        order = np.concatenate(long + rest)
        self._gathered = torch.from_numpy(blocks[order[done:]]).to(device)
        return order

    def _hide(
        self, positions: NDArray[np.int64], firsts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> torch.Tensor:
        """Return [N, 1, B]: 0 where a pair's token is seen, -inf before the window or the end."""
        places = positions[:, None] + np.arange(self._size)
        seen = (places >= firsts[:, None]) & (places < lengths[:, None])
        return torch.from_numpy(np.where(seen, np.float32(0), np.float32("-inf"))).unsqueeze(1)

    def _owner_rows(self, num_kv_heads: int) -> torch.Tensor:
        """Return [K * N]: where a pair's request lies among R * K rows, for each head in turn."""
        rows = self._owners_of_head.get(num_kv_heads)
        if rows is None:
            heads = torch.arange(num_kv_heads, device=self._owners.device).unsqueeze(1)
            rows = (self._owners * num_kv_heads + heads).flatten()
            self._owners_of_head[num_kv_heads] = rows
        return rows

    def attend(
        self, query: torch.Tensor, out: torch.Tensor, cache: torch.Tensor, spec: AttentionSpec
    ) -> None:
        """Write the group's rows of `out`; scores and sums are float32."""
        heads, pairs, depth = spec.num_kv_heads, len(self._owners), spec.head_size
        group = spec.num_heads // heads
        wide = torch.promote_types(query.dtype, torch.float32)
        rows = self._owner_rows(heads)
        keys = self._context("keys", cache[0], wide)
        mine = query[self._rows] if self._rows is not None else query[self._tokens]
        mine = mine.to(wide).mul(spec.scale).view(self._count * heads, group * depth)
        asked = mine.index_select(0, rows).view(heads, pairs, group, depth)
        scores = self._scratch.take("scores", (heads, pairs, group, self._size), wide, query.device)
        _multiply(asked, [(at, part.transpose(2, 3)) for at, part in keys], scores)
        if spec.soft_cap is not None:
            scores.mul_(1 / spec.soft_cap).tanh_().mul_(spec.soft_cap)
        scores.add_(self._bias)

        flat = scores.view(heads * pairs, group, self._size)
        highest = mine.new_full((self._count * heads, group), float("-inf"))
        highest.scatter_reduce_(0, rows.unsqueeze(1).expand(-1, group), flat.amax(-1), "amax")
        weights = flat.sub_(highest.index_select(0, rows).unsqueeze(-1)).exp_()
        total = mine.new_zeros(self._count * heads, group)
        total.index_add_(0, rows, weights.sum(-1))

        parts = self._scratch.take("parts", (heads, pairs, group, depth), wide, query.device)
        values = self._context("values", cache[1], wide)
        _multiply(weights.view(heads, pairs, group, self._size), values, parts)
        result = mine.new_zeros(self._count * heads, group * depth)
        result.index_add_(0, rows, parts.view(heads * pairs, group * depth))
        result = result.view(-1, group, depth).div_(total.unsqueeze(-1))
        result = result.view(self._count, spec.num_heads, depth)
        if self._rows is not None:
            out[self._rows].copy_(result)
        else:
            out[self._tokens] = result.to(out.dtype)

    def _context(self, name: str, source: torch.Tensor, wide: torch.dtype) -> list[_Part]:
        """Return one layer's keys (or values) in the order of the pairs, in as few parts as can be.

        Args:
            name: the scratch memory to use.
            source: [K, blocks, B, D].
            wide: the dtype to return.
        """
        heads, blocks, size, depth = source.shape
        parts = [(at, source[:, run]) for at, run in self._runs]
        if count := len(self._gathered):
            rest = self._scratch.take(
                name, (heads, count, size * depth), source.dtype, source.device
            )
            for one, into in zip(source.view(heads, blocks, -1), rest, strict=True):
                torch.index_select(one, 0, self._gathered, out=into)
            parts.append((self._rest, rest.view(heads, count, size, depth)))
        if source.dtype == wide:
            return parts
        whole = self._scratch.take(
            f"wide {name}", (heads, len(self._owners), size, depth), wide, source.device
        )
        for at, part in parts:
            whole[:, at].copy_(part)
        return [(slice(None), whole)]


def _multiply(left: torch.Tensor, right: list[_Part], out: torch.Tensor) -> None:
    """Multiply pair by pair: left [K, N, G, x] by parts of [K, n, x, y], into out [K, N, G, y]."""
    for at, part in right:
        for a, b, into in zip(left[:, at], part, out[:, at], strict=True):
            torch.bmm(a, b, out=into)
