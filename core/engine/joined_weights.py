"""Weights that a pass joins, so that one product does what several did.

A pass can only change the graph; it writes `join_rows` of parameters. Whoever binds parameters to
the graph calls `settle_joins`, which joins them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from engine.tracing import Traced


def join_rows(*weights: torch.Tensor) -> torch.Tensor:
    """Return weights one below the other: [O1, ...], [O2, ...] to [O1 + O2, ...]."""
    return torch.cat(weights)


def settle_joins(traced: Traced) -> Traced:
    """Join weights now instead of at each step; call it when the passes have run.

    Each `join_rows` of parameters becomes a placeholder with the joined weight. The parameters
    become views of it, so that no weight is in memory twice; while one is joined, its parts are.

    Args:
        traced: its graph is changed in place.

    Returns:
        `traced` with the joined weights among the example inputs.
    """
    graph = traced.graph.graph
    placeholders = graph.find_nodes(op="placeholder")
    values = dict(zip(placeholders, traced.example_inputs, strict=True))
    added: list[Any] = []
    for node in graph.find_nodes(op="call_function", target=join_rows):
        parts: list[Any] = [values.get(part) for part in node.args]
        if not all(isinstance(part, torch.nn.Parameter) for part in parts):
            continue
        joined = join_rows(*parts)
        _share(parts, joined)
        with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
            placeholder = graph.placeholder(node.name)
        placeholder.meta = dict(node.meta)
        node.replace_all_uses_with(placeholder)
        graph.erase_node(node)
        added.append(joined)
    traced.graph.recompile()
    return replace(traced, example_inputs=(*traced.example_inputs, *added))


def _share(parts: Sequence[Any], joined: torch.Tensor) -> None:
    start = 0
    for part in parts:
        part.data = joined[start : start + part.shape[0]]
        start += part.shape[0]
