"""Draws tokens from logits: temperature, top-k, top-p, min-p, then one inverse transform.

The filters follow each other: top-p sees the distribution that top-k has left, renormalised, and
min-p compares with the likeliest token. Among equal logits the lower token id is the likelier.
What a row gives depends on its own logits and settings alone, never on its neighbours: sums are
in float64, and how many tokens had to be looked at makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_FIRST_WIDTH = 128
"""Likeliest tokens to look at first: top-p seldom needs more, and sorting all is slow."""
_WIDENING = 32
SLACK = 32
"""Tokens to look at beyond those that are wanted, so that ties are settled by token id."""
_BLOCK = 256
"""Tokens whose weights are summed before the search over the vocabulary."""
_TINY = torch.finfo(torch.float32).tiny
_BELOW_ONE = 1 - 2.0**-50


class DrawSettings(NamedTuple):
    """How the token of one row is drawn.

    Attributes:
        temperature: more than 0.
        top_k: 1 or more; the size of the vocabulary when it is off.
        top_p: more than 0 and at most 1.
        min_p: from 0 to 1.
        uniform: the random number, in [0, 1).
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    uniform: float


def draw(logits: Tensor, settings: Sequence[DrawSettings]) -> Tensor:
    """Draw one token for each row.

    Args:
        logits: [N, V] float32. A row whose largest logit isn't finite gives any token id.
        settings: N of them.

    Returns:
        [N] int64 token ids.
    """
    vocab_size = logits.shape[1]
    table = torch.tensor(settings, dtype=torch.float64).to(logits.device)
    top = logits.amax(-1, keepdim=True)
    # The largest becomes 0, so no temperature is too low: the others can only become -inf.
    scaled = (logits - top).div_(table[:, :1].float().clamp_min_(_TINY))
    filtered = [i for i, s in enumerate(settings) if s.top_k < vocab_size or s.top_p < 1]
    if not filtered:
        return _draw_from_all(scaled, table)
    if len(filtered) == len(settings):
        return _draw_filtered(scaled, table, _first_width(settings, vocab_size))
    rest = sorted(set(range(len(settings))) - set(filtered))
    tokens = torch.empty(len(settings), dtype=torch.int64, device=logits.device)
    rows = torch.tensor(filtered, device=logits.device)
    width = _first_width([settings[i] for i in filtered], vocab_size)
    tokens[rows] = _draw_filtered(scaled[rows], table[rows], width)
    rows = torch.tensor(rest, device=logits.device)
    tokens[rows] = _draw_from_all(scaled[rows], table[rows])
    return tokens


def likeliest(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the largest logits of each row in descending order, and their token ids.

    Equal ones are in ascending order of token id. Of those equal to the last one, any may be
    missing.

    Args:
        logits: [N, V].
        width: W; all when it is V or more.

    Returns:
        [N, W] values and [N, W] int64 token ids.
    """
    if width >= logits.shape[1]:
        return torch.sort(logits, dim=-1, descending=True, stable=True)
    values, ids = logits.topk(width)
    ids, order = ids.sort(-1)
    values, order = torch.sort(values.gather(-1, order), dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def _first_width(settings: Sequence[DrawSettings], vocab_size: int) -> int:
    """Return how many to look at first; all that top-k keeps, because top-p needs their sum."""
    largest_k = max((s.top_k for s in settings if s.top_k < vocab_size), default=0)
    return max(_FIRST_WIDTH, largest_k + SLACK)


def _draw_filtered(scaled: Tensor, table: Tensor, width: int) -> Tensor:
    """Draw from a growing number of likeliest tokens until what top-k and top-p keep is known."""
    total = scaled.exp().sum(-1, keepdim=True, dtype=torch.float64)
    tokens, known = _draw_from_likeliest(scaled, table, total, width)
    while width < scaled.shape[1] and not bool(known.all()):
        rows = (~known).nonzero()[:, 0]
        width *= _WIDENING
        tokens[rows], known[rows] = _draw_from_likeliest(
            scaled[rows], table[rows], total[rows], width
        )
    return tokens


def _draw_from_likeliest(
    scaled: Tensor, table: Tensor, total: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Draw, knowing only the likeliest tokens.

    Args:
        scaled: [N, V] float32 logits, divided by the temperature; the largest is 0.
        table: [N, 5] float64 `DrawSettings`.
        total: [N, 1] float64, the sum of all exponentials.
        width: how many to look at.

    Returns:
        [N] token ids, and [N] bools: False where more tokens have to be looked at.
    """
    vocab_size = scaled.shape[1]
    _, top_k, top_p, min_p, uniform = table[:, :, None].unbind(1)
    values, ids = likeliest(scaled, width)
    weights = values.double().exp()
    weights *= torch.arange(weights.shape[1], device=weights.device) < top_k
    total = torch.where(top_k < vocab_size, weights.sum(-1, keepdim=True), total)
    # The smallest set that reaches top-p: a token stays if those before it don't reach it.
    before = weights.cumsum(-1) - weights
    keep = ((before < top_p * total) | (top_p == 1)) & (weights > 0) & (values >= min_p.log())
    last = values.gather(-1, (keep.sum(-1, keepdim=True) - 1).clamp_min(0))
    # Known if the last one that stays is none of those of which some may be missing.
    known = (last > values[:, -1:]) | values[:, :1].isnan()
    tokens = _draw_in_order(ids, weights * keep, uniform)
    if ids.shape[1] == vocab_size:
        known = torch.ones_like(known)
    return tokens, known[:, 0]


def _draw_in_order(ids: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw in the order of token ids, so that it doesn't matter how many are looked at.

    Args:
        ids: [N, W] different token ids.
        weights: [N, W] float64, of these tokens.
        uniform: [N, 1] float64 in [0, 1).
    """
    ids, order = ids.sort(-1)
    cumulative = weights.gather(-1, order).cumsum(-1)
    chosen = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return ids.gather(-1, chosen.clamp_max_(ids.shape[1] - 1))[:, 0]


def _draw_from_all(scaled: Tensor, table: Tensor) -> Tensor:
    """Draw from the whole vocabulary, but for what min-p drops.

    First a block of tokens is searched, then a token in it: one sum over the vocabulary is much
    cheaper than a cumulative one.
    """
    _, _, _, min_p, uniform = table[:, :, None].unbind(1)
    weights = scaled.exp()
    weights *= scaled >= min_p.log()
    padding = -weights.shape[1] % _BLOCK
    blocks = F.pad(weights, (0, padding)) if padding else weights
    blocks = blocks.unflatten(-1, (-1, _BLOCK))
    sums = blocks.sum(-1, dtype=torch.float64)
    cumulative = sums.cumsum(-1)
    target = uniform * cumulative[:, -1:]
    block = torch.searchsorted(cumulative, target, right=True).clamp_max_(sums.shape[1] - 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(-1)
    target -= cumulative.gather(-1, block) - sums.gather(-1, block)
    # Two sums of the same numbers may differ in the last bit; stay where there is weight.
    target = torch.minimum(target.clamp_min_(0), inside[:, -1:] * _BELOW_ONE)
    token = torch.searchsorted(inside, target, right=True).clamp_max_(_BLOCK - 1)
    return (block * _BLOCK + token)[:, 0].clamp_max_(scaled.shape[1] - 1)
