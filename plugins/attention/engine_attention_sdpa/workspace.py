"""The buffers and index tensors of a group, for layers of one shape.

Made at the first layer of a step and used by all of them: what is left to do per layer is the
arithmetic. Shapes as in `group`; a row is one (request, key/value head), R * K of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.attention import AttentionSpec
    from engine_attention_sdpa.scratch import Scratch


class Workspace:
    """Computes scores, softmax and weighted values of N (block, request) pairs.

    Args:
        scratch: where the large buffers come from.
        owners: [N] int64, the request of each pair.
        count: requests.
        runs: pairs that are read in place, and the blocks that they are.
        gathered: blocks of the remaining pairs.
        block_size: tokens in one block.
        spec: heads and head size.
        dtype: of the cache.
    """

    def __init__(
        self,
        scratch: Scratch,
        *,
        owners: torch.Tensor,
        count: int,
        runs: list[tuple[slice, slice]],
        gathered: torch.Tensor,
        block_size: int,
        spec: AttentionSpec,
        dtype: torch.dtype,
    ) -> None:
        self._runs, self._gathered = runs, gathered
        heads, depth, pairs, device = spec.num_kv_heads, spec.head_size, len(owners), owners.device
        group = spec.num_heads // heads
        self.wide = torch.promote_types(dtype, torch.float32)
        self._copied = dtype != self.wide

        def take(name: str, *shape: int, dtype: torch.dtype = self.wide) -> torch.Tensor:
            return scratch.take(name, shape, dtype, device)

        head = torch.arange(heads, device=device).unsqueeze(1)
        self._rows = (owners * heads + head).flatten()
        self._row_of_each = self._rows.unsqueeze(1).expand(-1, group)
        self._asked_shape = (heads, pairs, group, depth)
        self._out_shape = (count, spec.num_heads, depth)
        self._scores = take("scores", heads, pairs, group, block_size)
        self._flat = self._scores.view(heads * pairs, group, block_size)
        self._parts = take("parts", heads, pairs, group, depth)
        self._flat_parts = self._parts.view(heads * pairs, group * depth)
        self._highest = take("highest", count * heads, group)
        self._total = take("total", count * heads, group)
        self._result = take("result", count * heads, group * depth)

        shape = (heads, len(gathered), block_size, depth)
        self._rest = {name: take(name, *shape, dtype=dtype) for name in ("keys", "values")}
        if self._copied:
            shape = (heads, pairs, block_size, depth)
            self._whole = {name: take(f"wide {name}", *shape) for name in ("keys", "values")}
        places = [at for at, _ in runs]
        places += [slice(pairs - len(gathered), pairs)] if len(gathered) else []
        self._places = places
        # One product per place and head; after a copy to the wide dtype, one per head.
        self._products = [slice(0, pairs)] if self._copied else places

    def ask(self, query: torch.Tensor) -> torch.Tensor:
        """Return [K, N, G, D]: for each pair the query of its request, from [R, H, D]."""
        rows = query.reshape(self._result.shape)
        return rows.index_select(0, self._rows).view(self._asked_shape)

    def score(self, asked: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return scores [K, N, G, B], in a buffer that `weigh` goes on with."""
        context = [part.transpose(2, 3) for part in self._context("keys", keys)]
        self._multiply(asked, context, self._scores)
        return self._scores

    def weigh(self) -> torch.Tensor:
        """Turn the scores into weights, not yet divided by their sum, which is kept."""
        self._highest.fill_(float("-inf"))
        self._highest.scatter_reduce_(0, self._row_of_each, self._flat.amax(-1), "amax")
        self._flat.sub_(self._highest.index_select(0, self._rows).unsqueeze(-1)).exp_()
        self._total.zero_().index_add_(0, self._rows, self._flat.sum(-1))
        return self._scores

    def sum_up(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return [R, H, D]: each request's weighted values, divided by its sum of weights."""
        self._multiply(weights, self._context("values", values), self._parts)
        self._result.zero_().index_add_(0, self._rows, self._flat_parts)
        self._result.view(*self._total.shape, -1).div_(self._total.unsqueeze(-1))
        return self._result.view(self._out_shape)

    def _context(self, name: str, source: torch.Tensor) -> list[torch.Tensor]:
        """Return a layer's keys (or values) [K, blocks, B, D] as the products want them."""
        parts = [source[:, run] for _, run in self._runs]
        if len(self._gathered):
            rest = self._rest[name]
            # Head by head: torch copies whole rows only along the outermost dimension.
            for one, into in zip(source.flatten(2), rest.flatten(2), strict=True):
                torch.index_select(one, 0, self._gathered, out=into)
            parts.append(rest)
        if not self._copied:
            return parts
        whole = self._whole[name]
        for at, part in zip(self._places, parts, strict=True):
            whole[:, at].copy_(part)
        return [whole]

    def _multiply(self, left: torch.Tensor, right: list[torch.Tensor], out: torch.Tensor) -> None:
        """Multiply pair by pair: [K, N, G, x] by parts of [K, n, x, y], into [K, N, G, y]."""
        for at, part in zip(self._products, right, strict=True):
            for a, b, into in zip(left[:, at], part, out[:, at], strict=True):
                torch.bmm(a, b, out=into)
