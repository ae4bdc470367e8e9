"""Which combination to take: the fastest right one, or a simpler one that is as fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from engine.settings import Settings
from engine_tools.bench.command_line import command_line, said_elsewhere
from engine_tools.verify.matrix import Combination

if TYPE_CHECKING:
    from engine_tools.bench.matrix_result import Cell


def best(cells: Sequence[Cell], reference: Combination) -> tuple[Cell, Cell] | None:
    """Return the cell to take and the fastest one; None when no cell is right.

    A cell is as fast as the fastest when their repeats overlap. Of such cells the one that
    differs from the reference in the fewest modes is taken, then the one that starts first.
    """
    right = [cell for cell in cells if cell.right and cell.decode]
    if not right:
        return None
    fastest = min(right, key=_median)
    equally = [cell for cell in right if _low(cell) <= _high(fastest)]

    def cost(cell: Cell) -> tuple[int, float]:
        pairs = zip(cell.combination, reference, strict=True)
        return sum(mine != off for mine, off in pairs), cell.ready_s

    return min(equally, key=cost), fastest


def recommend(cells: Sequence[Cell], reference: Combination, settings: Settings) -> Iterator[str]:
    """Yield the recommendation in sentences, with the command line that follows it."""
    found = best(cells, reference)
    if found is None:
        yield "nothing is recommended: no combination gave tokens that are known to be right"
        return
    cell, fastest = found
    name = " / ".join(cell.combination)
    yield f"recommended: {name}, {_median(cell):.3f} ms a step{_gain(cell, cells, reference)}"
    if cell is not fastest:
        yield (
            f"the fastest is {' / '.join(fastest.combination)} with {_median(fastest):.3f} ms, "
            "which is within the spread of the repeats; the simpler one is recommended"
        )
    yield command_line(cell.combination, settings)
    if others := said_elsewhere(settings):
        yield f"it needs what was said elsewhere too: {', '.join(others)}"


def _gain(cell: Cell, cells: Sequence[Cell], reference: Combination) -> str:
    """Say by how much it is faster than the reference."""
    plain = next((c for c in cells if c.combination == reference and c.decode), None)
    if plain is None or plain is cell:
        return ""
    times = _median(plain) / _median(cell)
    start = cell.ready_s - plain.ready_s
    return (
        f", {times:.2f} times as fast as {' / '.join(reference)}; "
        f"its start takes {abs(start):.1f} s {'more' if start >= 0 else 'less'}"
    )


def _median(cell: Cell) -> float:
    return cell.decode.median if cell.decode else float("inf")


def _low(cell: Cell) -> float:
    return cell.decode.minimum if cell.decode else float("inf")


def _high(cell: Cell) -> float:
    return cell.decode.maximum if cell.decode else float("inf")
