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

from engine_attention_sdpa.workspace import Workspace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.attention import AttentionSpec
    from engine_attention_sdpa.scratch import Scratch

MIN_RUN_TOKENS = 1024
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
        self._workspaces: dict[tuple[int, int, int, torch.dtype], Workspace] = {}

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
        owners = owners[order]
        self._owners = torch.from_numpy(owners).to(device)
        self._bias = self._hide(positions[order], firsts[owners], lengths[owners]).to(device)

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

    def _workspace(self, spec: AttentionSpec, dtype: torch.dtype) -> Workspace:
        alike = (spec.num_heads, spec.num_kv_heads, spec.head_size, dtype)
        space = self._workspaces.get(alike)
        if space is None:
            space = self._workspaces[alike] = Workspace(
                self._scratch,
                owners=self._owners,
                count=self._count,
                runs=self._runs,
                gathered=self._gathered,
                block_size=self._size,
                spec=spec,
                dtype=dtype,
            )
        return space

    def attend(
        self, query: torch.Tensor, out: torch.Tensor, cache: torch.Tensor, spec: AttentionSpec
    ) -> None:
        """Write the group's rows of `out`; scores and sums are float32."""
        space = self._workspace(spec, query.dtype)
        mine = query[self._rows] if self._rows is not None else query[self._tokens]
        asked = space.ask(mine.to(space.wide) * spec.scale)
        scores = space.score(asked, cache[0])
        if spec.soft_cap is not None:
            scores.mul_(1 / spec.soft_cap).tanh_().mul_(spec.soft_cap)
        scores.add_(self._bias)
        result = space.sum_up(space.weigh(), cache[1])
        if self._rows is not None:
            out[self._rows].copy_(result)
        else:
            out[self._tokens] = result.to(out.dtype)
