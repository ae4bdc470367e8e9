"""One request of a step: a prefill chunk, or a token that is decoded alone.

Shapes: n tokens of the request in this step, S tokens of its context that they see, H query
heads in K groups of G (the query heads that share one key/value head), D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.attention import AttentionSpec

MAX_PIECE = 256
"""Queries computed at a time under an explicit mask."""
MAX_PIECE_SCORES = 2**20
"""Queries times keys of one piece; bounds the mask, and the scores under a soft cap."""


@dataclass(frozen=True)
class _Piece:
    """Some queries of the request: tokens [start, stop) against the context's [low, high)."""

    start: int
    stop: int
    low: int
    high: int
    mask: torch.Tensor | None
    causal: bool


class Request:
    """Attends the tokens [start, stop) of the step, the last of a context of `length` tokens."""

    def __init__(
        self,
        *,
        start: int,
        stop: int,
        length: int,
        table: NDArray[np.int32],
        block_size: int,
        window: int | None,
        capped: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._start, self._stop = start, stop
        count = stop - start
        length = max(length, count)
        self._window = window
        self._first = 0 if window is None else max(0, length - count - window + 1)
        self._length = length
        self._own = length == count
        if not self._own:
            self._locate(table, block_size, device)
        # Torch's own causal mask fits a context that begins with the chunk, and skips the upper
        # triangle; anything else gets an explicit mask, piece by piece.
        whole = self._own and not capped and (window is None or window >= length)
        if count == 1:
            self._pieces = [_Piece(start, stop, 0, length - self._first, None, causal=False)]
        elif whole:
            self._pieces = [_Piece(start, stop, 0, length, None, causal=True)]
        else:
            self._pieces = self._masked_pieces(dtype, device)

    def _locate(self, table: NDArray[np.int32], block_size: int, device: torch.device) -> None:
        """Find the context in the cache: a slice when its blocks follow each other."""
        head = self._first // block_size
        blocks = table[head : -(-self._length // block_size)]
        self._offset = self._first - head * block_size
        self._gathered: torch.Tensor | None = None
        if bool((np.diff(blocks) == 1).all()):
            self._offset += int(blocks[0]) * block_size
        else:
            self._gathered = torch.from_numpy(blocks.astype(np.int64)).to(device)

    def _masked_pieces(self, dtype: torch.dtype, device: torch.device) -> list[_Piece]:
        size = max(1, min(MAX_PIECE, MAX_PIECE_SCORES // self._length))
        shift = self._length - self._stop  # token -> position in the context
        pieces = []
        for start in range(self._start, self._stop, size):
            stop = min(start + size, self._stop)
            first, last = start + shift, stop + shift
            low = 0 if self._window is None else max(0, first - self._window + 1)
            query = torch.arange(first, last, device=device).unsqueeze(1)
            key = torch.arange(low, last, device=device)
            hidden = key > query
            if self._window is not None:
                hidden |= key <= query - self._window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
            mask.masked_fill_(hidden, float("-inf"))
            bounds = (low - self._first, last - self._first)
            pieces.append(_Piece(start, stop, *bounds, mask, causal=False))
        return pieces

    def _context(
        self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values that the chunk sees, [K, S, D] each."""
        if self._own:
            rows = slice(self._start, self._stop)
            return key[rows].transpose(0, 1), value[rows].transpose(0, 1)
        _, heads, _, _, depth = cache.shape
        if self._gathered is not None:
            cache = cache.index_select(2, self._gathered)
        stop = self._offset + self._length - self._first
        keys, values = cache.view(2, heads, -1, depth)[:, :, self._offset : stop].unbind(0)
        return keys, values

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
    ) -> None:
        """Write the request's rows of `out`."""
        keys, values = self._context(key, value, cache)
        groups = (spec.num_kv_heads, spec.num_heads // spec.num_kv_heads)
        for piece in self._pieces:
            # [n, H, D] -> [K, G, n, D]: a batch of K, so that keys and values aren't repeated.
            rows = slice(piece.start, piece.stop)
            q = query[rows].view(-1, *groups, spec.head_size).permute(1, 2, 0, 3)
            k, v = keys[:, piece.low : piece.high], values[:, piece.low : piece.high]
            result = _attend(q, k, v, piece, spec)
            out[rows].view(-1, *groups, spec.head_size).copy_(result.permute(2, 0, 1, 3))


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, piece: _Piece, spec: AttentionSpec
) -> torch.Tensor:
    """Return [K, G, n, D] from q [K, G, n, D] and k, v [K, S, D]."""
    if spec.soft_cap is not None:
        return _attend_capped(q, k, v, piece.mask, spec.scale, spec.soft_cap)
    if q.shape[2] == 1:
        # Heads of a group become queries of one head: the keys are read once for all of them.
        grouped = q.transpose(1, 2)
        result = F.scaled_dot_product_attention(
            grouped, k.unsqueeze(1), v.unsqueeze(1), scale=spec.scale
        )
        return result.transpose(1, 2)
    shape = (-1, q.shape[1], -1, -1)
    return F.scaled_dot_product_attention(
        q,
        k.unsqueeze(1).expand(shape),
        v.unsqueeze(1).expand(shape),
        attn_mask=piece.mask,
        is_causal=piece.causal,
        scale=spec.scale,
    )


def _attend_capped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """Attend with scores `cap * tanh(score / cap)` in float32 (Gemma 2, arXiv:2408.00118)."""
    heads, group, count, depth = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    flat = q.reshape(heads, group * count, depth).to(wide)
    scores = torch.bmm(flat, k.to(wide).transpose(1, 2)).mul_(scale / cap).tanh_().mul_(cap)
    scores = scores.view(heads, group, count, -1)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1).view(heads, group * count, -1)
    return torch.bmm(weights, v.to(wide)).view(heads, group, count, depth).to(q.dtype)
