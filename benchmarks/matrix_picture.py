"""Draws what gpu_matrix.py measured: ms per decode step of every combination, as an SVG.

For instance:

python benchmarks/matrix_picture.py results/h200-matrix-llama-3.2-1b.json out.svg
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLUMNS = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")
_SCALE = ((1.15, "bold bright_green"), (1.5, "green"), (2.5, "yellow"), (5.0, "dark_orange"))
"""Colours by how many times the fastest cell of a batch a cell takes."""


def shade(times: float) -> str:
    """Return the style of a cell."""
    return next((style for limit, style in _SCALE if times <= limit), "red")


def draw(report: dict[str, Any], batch: int) -> Table:
    """Return a table of compile modes and backends against graph modes, for one batch."""
    cells = {(c["mode"], c["backend"], c["graphs"]): c for c in report["cells"]}
    key = f"ms_{batch}"
    fastest = min(cell[key] for cell in cells.values())
    shape = report["arguments"]["shape"]
    table = Table(title=f"{shape}, {report['gpu']}, batch {batch}: ms per decode step")
    table.add_column("compile mode")
    table.add_column("backend")
    for graphs in _COLUMNS:
        table.add_column(graphs, justify="right")
    for mode, backend in dict.fromkeys((m, b) for m, b, _ in cells):
        row = [Text(mode), Text("" if mode == "none" else backend)]
        for graphs in _COLUMNS:
            cell = cells.get((mode, backend, graphs))
            if cell is None:
                row.append(Text("-", "dim"))
            else:
                row.append(Text(f"{cell[key]:.2f}", shade(cell[key] / fastest)))
        table.add_row(*row)
    return table


def main() -> None:
    """Read a result, write a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    report = json.loads(args.result.read_text())
    console = Console(record=True, width=110, file=io.StringIO())
    for batch in report["arguments"]["batch"]:
        console.print(draw(report, batch))
    console.save_svg(str(args.picture), title="engine: every combination", unique_id="matrix")


if __name__ == "__main__":
    main()
