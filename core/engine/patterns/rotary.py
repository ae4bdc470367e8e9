"""Finds rotary embeddings of heads, and the norms over heads before them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from engine.patterns.editing import GraphEditor, argument, example, inputs, is_call
from engine.patterns.norms import RmsNorm, is_size, match_rms_norm

_MUL = (operator.mul, torch.mul, "mul")
_ADD = (operator.add, torch.add, "add")
_CAT = (torch.cat, torch.concat)
_PAIR = 2
_ALL = slice(None)


@dataclass(frozen=True)
class Rotary:
    """`engine.ops.qk_norm_rope` in a graph, of queries, of keys, or of both side by side.

    Attributes:
        result: [T, N, D], or [1, N, T, D].
        x: what is normalised and rotated: as the result, or [1, T, N, D].
        query_weight, key_weight: of the norms over the first `heads` heads and over the others.
        heads: how many of the N heads are queries; all of them where they aren't told apart.
        eps: of the norms.
        cos, sin: [T, 1, R], or [1, 1, T, R].
        signed: the first half of `sin` is negated already.
        nodes: all nodes of it, the result included.
    """

    result: fx.Node
    x: fx.Node
    query_weight: fx.Node | None
    key_weight: fx.Node | None
    heads: int
    eps: float
    cos: fx.Node
    sin: fx.Node
    signed: bool
    nodes: frozenset[fx.Node]

    @property
    def read(self) -> frozenset[fx.Node]:
        """What is read whenever it is computed: `x` and the tables."""
        return frozenset({self.x, self.cos, self.sin})

    @property
    def tokens_first(self) -> bool:
        """Whether the result is [T, N, D]."""
        value = example(self.result)
        return value is not None and value.ndim == len(("T", "N", "D"))

    def flat_x(self, editor: GraphEditor) -> fx.Node:
        """Add views that make [T, N, D] of `x`."""
        value, result = example(self.x), example(self.result)
        if value is None or result is None or value.ndim == len(("T", "N", "D")):
            return self.x
        row = editor.call(operator.getitem, self.x, 0)
        rows_first = is_size(value.shape[1], result.shape[1])
        return editor.method("transpose", row, 0, 1) if rows_first else row

    def flat_tables(self, editor: GraphEditor) -> tuple[fx.Node, fx.Node]:
        """Add views that make [T, 1, R] of the tables."""
        if self.tokens_first:
            return self.cos, self.sin
        rows = [editor.call(operator.getitem, table, 0) for table in (self.cos, self.sin)]
        cos, sin = (editor.method("transpose", row, 0, 1) for row in rows)
        return cos, sin


def match_rotary(result: fx.Node, accept: Callable[[Rotary], bool]) -> Rotary | None:
    """Return the rotation whose result a node is, or None.

    Args:
        result: an addition, or a concatenation with what isn't rotated.
        accept: says whether a match may be used; the norms are left out of one that may not.
    """
    plain = _rotation(result)
    if plain is None:
        return None
    widest = _with_norms(plain)
    for found in (widest, plain):
        if found is not None and accept(found):
            return found
    return None


def _rotation(result: fx.Node) -> Rotary | None:
    if is_call(result, *_CAT):
        parts, dim = inputs(result)[0], argument(result, 1, "dim", 0)
        if dim != -1 or not isinstance(parts, list | tuple) or len(parts) != _PAIR:
            return None
        found = _turned(parts[0])
        size = None if found is None else _size(found.cos, -1)
        if found is None or not _is_slice(parts[1], found.x, (size, None)):
            return None
        return replace(found, result=result, nodes=found.nodes | {result, parts[1]})
    found = _turned(result)
    return (
        found if found is not None and is_size(_size(found.x, -1), _size(found.cos, -1)) else None
    )


def _turned(total: Any) -> Rotary | None:
    """Match `part * cos + swapped(part) * sin`; `x` is what `part` is the beginning of."""
    if not is_call(total, *_ADD) or len(inputs(total)) != _PAIR or total.kwargs:
        return None
    for straight, across in (inputs(total), reversed(inputs(total))):
        if not is_call(straight, *_MUL) or not is_call(across, *_MUL):
            continue
        for swapped, sin in (inputs(across), reversed(inputs(across))):
            found = _by_roll(swapped) or _by_negation(swapped)
            if found is None or found.part not in inputs(straight):
                continue
            cos = next((f for f in inputs(straight) if f is not found.part), None)
            x, extra = _whole(found.part)
            heads = _size(x, 1)
            if cos and isinstance(heads, int) and _fits(found.part, cos, sin, total):
                nodes = frozenset({total, straight, across, *found.nodes, *extra})
                return Rotary(total, x, None, None, heads, 0.0, cos, sin, found.signed, nodes)
    return None


def _size(node: Any, dim: int) -> Any:
    value = example(node)
    return None if value is None or value.ndim <= dim else value.shape[dim]


@dataclass(frozen=True)
class _Swapped:
    """A part with its halves swapped; the first one negated unless `sin` is."""

    part: fx.Node
    signed: bool
    nodes: tuple[fx.Node, ...]


def _by_roll(node: Any) -> _Swapped | None:
    """Match `part.roll(R / 2, dims=-1)`."""
    if not is_call(node, torch.roll, "roll"):
        return None
    part, shift, dims = inputs(node)[0], argument(node, 1, "shifts"), argument(node, 2, "dims")
    size = _size(part, -1)
    if dims not in (-1, (-1,), [-1]) or not isinstance(size, int) or size % _PAIR:
        return None
    if shift not in (size // _PAIR, (size // _PAIR,), [size // _PAIR]):
        return None
    return _Swapped(part, signed=True, nodes=(node,))


def _by_negation(node: Any) -> _Swapped | None:
    """Match `cat((-part[..., R / 2:], part[..., :R / 2]), dim=-1)`."""
    if not is_call(node, *_CAT) or argument(node, 1, "dim", 0) != -1:
        return None
    halves = inputs(node)[0]
    if len(halves) != _PAIR or not is_call(halves[0], operator.neg, torch.neg, "neg"):
        return None
    second, first = inputs(halves[0])[0], halves[1]
    if not is_call(first, operator.getitem):
        return None
    part = inputs(first)[0]
    size = _size(part, -1)
    if not isinstance(size, int) or size % _PAIR:
        return None
    half = size // _PAIR
    if not _is_slice(first, part, (None, half)) or not _is_slice(second, part, (half, None)):
        return None
    return _Swapped(part, signed=False, nodes=(node, halves[0], second, first))


def _is_slice(node: Any, source: Any, bounds: tuple[Any, Any]) -> bool:
    """Say whether a node is `source[..., start:stop]`."""
    if not is_call(node, operator.getitem) or inputs(node)[0] is not source:
        return False
    index = inputs(node)[1]
    if not isinstance(index, tuple) or len(index) != _PAIR or index[0] is not Ellipsis:
        return False
    wanted = slice(*bounds)
    return isinstance(index[1], slice) and (
        (index[1].start or None, index[1].stop, index[1].step)
        == (wanted.start, wanted.stop, wanted.step)
    )


def _whole(part: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """Return what a part is the beginning of, along the last dimension."""
    size = _size(part, -1)
    if is_call(part, operator.getitem) and isinstance(inputs(part)[0], fx.Node):
        source = inputs(part)[0]
        if _is_slice(part, source, (None, size)):
            return source, [part]
    return part, []


def _fits(part: fx.Node, cos: Any, sin: Any, total: fx.Node) -> bool:
    """Say whether tables have one row for each token, and all dtypes are one."""
    tensors = [example(node) for node in (part, cos, sin, total)]
    if any(tensor is None for tensor in tensors):
        return False
    x, *tables, _ = [tensor for tensor in tensors if tensor is not None]
    if len({tensor.dtype for tensor in tensors if tensor is not None}) != 1:
        return False
    if x.ndim == 3:  # [T, N, D]
        shaped = all(t.ndim == x.ndim and is_size(t.shape[1], 1) for t in tables)
    else:
        shaped = (
            x.ndim == 4  # [1, N, T, D]
            and is_size(x.shape[0], 1)
            and isinstance(x.shape[1], int)
            and all(
                t.ndim == x.ndim and is_size(t.shape[0], 1) and is_size(t.shape[1], 1)
                for t in tables
            )
        )
    return shaped and all(is_size(t.shape[-1], x.shape[-1]) for t in tables)


def _with_norms(found: Rotary) -> Rotary | None:
    """Take the norms before a rotation into it."""
    x = found.x
    if is_call(x, *_CAT) and found.tokens_first:
        return _with_both_norms(found, x)
    outer: list[fx.Node] = []
    if not found.tokens_first and is_call(x, "transpose", torch.transpose):
        if tuple(inputs(x)[1:]) not in ((1, 2), (2, 1), (-3, -2), (-2, -3)):
            return None
        outer, x = [x], inputs(x)[0]
    norm = match_rms_norm(x) if isinstance(x, fx.Node) else None
    if norm is None:
        return None
    nodes = found.nodes | norm.nodes | set(outer)
    return replace(found, x=norm.x, query_weight=norm.weight, eps=norm.eps, nodes=nodes)


def _with_both_norms(found: Rotary, joined: fx.Node) -> Rotary | None:
    """Match queries and keys that are normalised apart and rotated side by side."""
    parts = inputs(joined)[0]
    if argument(joined, 1, "dim", 0) != 1 or not isinstance(parts, list | tuple):
        return None
    norms = [match_rms_norm(part) for part in parts]
    if len(norms) != _PAIR or not all(isinstance(norm, RmsNorm) for norm in norms):
        return None
    query, key = (norm for norm in norms if norm is not None)
    source = inputs(query.x)[0] if inputs(query.x) else None
    if not isinstance(source, fx.Node) or query.eps != key.eps:
        return None
    value, first = example(source), example(query.x)
    if value is None or first is None or not isinstance(first.shape[1], int):
        return None
    heads = first.shape[1]
    if not is_heads(query.x, source, (None, heads)) or not is_heads(key.x, source, (heads, None)):
        return None
    nodes = found.nodes | query.nodes | key.nodes | {joined, query.x, key.x}
    return replace(
        found,
        x=source,
        query_weight=query.weight,
        key_weight=key.weight,
        heads=heads,
        eps=query.eps,
        nodes=nodes,
    )


def is_heads(node: Any, source: fx.Node, bounds: tuple[Any, Any]) -> bool:
    """Say whether a node is `source[:, start:stop]`, and covers what the bounds say."""
    if not is_call(node, operator.getitem) or inputs(node)[0] is not source:
        return False
    index = inputs(node)[1]
    return (
        isinstance(index, tuple)
        and len(index) == _PAIR
        and index[0] == _ALL
        and isinstance(index[1], slice)
        and (index[1].start or None, index[1].stop, index[1].step) == (*bounds, None)
    )
