"""The functions that transformers' attention layers call.

Two implementations are registered with transformers, under names of our own: one that serves,
and one that watches what a model's layers ask for. Registering is idempotent and touches
nothing that another user of transformers could have registered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from engine.ops import attention

SERVING = "engine"
WATCHING = "engine_watching"
RECORD = "engine_record"
"""The attribute of a module that receives the calls of its attention layers."""

FAR = 1_000_003
"""A position beyond any sliding window, from which a mask is looked at."""


@dataclass(frozen=True)
class Call:
    """What one attention layer passed: shapes are [1, heads, T, D]."""

    module: nn.Module
    query: torch.Size
    key: torch.Size
    value: torch.Size
    mask: Any
    options: dict[str, Any]


class Seen(torch.Tensor):
    """An empty tensor in place of a mask, that says what the mask would let through.

    Attributes:
        window: tokens that a token sees, itself included; None for all before it.
        odd: what keeps the mask from being causal with a window; empty when it is.
    """

    window: int | None
    odd: str


def _serve(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend through the engine: [1, heads, T, D] -> [1, T, heads, D].

    Scale, window and soft cap are those of the layer's specification; no mask is made.
    """
    flat = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value)]
    layer: Any = module.layer_idx
    return attention(flat[0], flat[1], flat[2], layer).unsqueeze(0), None


def _watch(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Record the call; let each token attend to itself alone, so that tokens stay apart."""
    record: list[Call] = getattr(module, RECORD)
    record.append(Call(module, query.shape, key.shape, value.shape, attention_mask, options))
    repeats = query.shape[1] // value.shape[1]
    return value.repeat_interleave(repeats, 1).transpose(1, 2), None


def _look(*, mask_function: Any, device: Any = "cpu", **_: Any) -> Seen:
    """Find out what a mask lets through, from two far positions."""
    seen: Seen = torch.empty(0).as_subclass(Seen)
    widths = []
    for position in (FAR, FAR + 1):
        zero = torch.zeros((), dtype=torch.long, device=device)
        keys = torch.arange(position + 2, device=device)
        visible = mask_function(zero, zero, zero + position, keys).broadcast_to(keys.shape)
        width = int(visible.sum())
        past = visible[: position + 1]
        if width > len(past) or not bool(past[len(past) - width :].all()):
            seen.window, seen.odd = None, "not causal, or with holes"
            return seen
        widths.append(width)
    full = widths == [FAR + 1, FAR + 2]
    seen.window = None if full else widths[0]
    seen.odd = "" if full or widths[0] == widths[1] else "cut into chunks"
    return seen


AttentionInterface.register(SERVING, _serve)
AttentionInterface.register(WATCHING, _watch)
# Only the watching name has a mask function: without one, transformers makes no mask at all.
AttentionMaskInterface.register(WATCHING, _look)
