"""Feeds a tool-call parser a text in pieces and joins what it tells."""

from __future__ import annotations

import random
from collections.abc import Iterable

from engine.tool_parsers import CallDelta, Delta, ToolParser


def join(deltas: Iterable[Delta]) -> tuple[str, list[tuple[str, str]]]:
    """Return the text, and name and arguments of each call, as a client joins them.

    Raises:
        ValueError: a call has no name, two names, or a place that doesn't follow.
    """
    text, calls = "", list[tuple[str, str]]()
    for delta in deltas:
        if not isinstance(delta, CallDelta):
            text += delta.text
        elif delta.name is not None:
            if delta.index != len(calls):
                raise ValueError(f"call {delta.index} begins after {len(calls)}")
            calls.append((delta.name, delta.arguments))
        else:
            name, arguments = calls[delta.index]
            calls[delta.index] = (name, arguments + delta.arguments)
    return text, calls


def read_in_pieces(parser: ToolParser, text: str, cuts: int) -> tuple[str, list[tuple[str, str]]]:
    """Return what `join` makes of a text that is cut at random places.

    Args:
        parser: a fresh one.
        text: the whole answer.
        cuts: how many; at least as many as there are letters means single letters.
    """
    places = range(1, len(text))
    chosen = sorted(random.sample(places, min(cuts, len(places))))
    deltas: list[Delta] = []
    for start, end in zip([0, *chosen], [*chosen, len(text)], strict=True):
        deltas += parser.push(text[start:end])
    return join([*deltas, *parser.finish()])
