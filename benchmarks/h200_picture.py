"""Draws what h200.py measured: decode steps and throughput beside the peer's, as an SVG.

For instance:

python benchmarks/h200_picture.py results/h200.json out.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from h200 import figures
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_BATCHES = (1, 8, 32, 128)
_WIDTH = 0.38


def draw_steps(
    axes: Axes, shape: str, measured: Mapping[str, float], peer: Mapping[str, float]
) -> None:
    """Draw ms per decode step of one shape: a pair of bars for each batch, the floor as a line."""
    names = [f"ms_{batch}" for batch in _BATCHES]
    places = range(len(names))
    ours = [measured.get(name, 0.0) for name in names]
    bars = axes.bar([at - _WIDTH / 2 for at in places], ours, _WIDTH, label="Engine")
    axes.bar_label(bars, fmt="%.2f", fontsize=7)
    theirs = [peer.get(name, 0.0) for name in names]
    bars = axes.bar([at + _WIDTH / 2 for at in places], theirs, _WIDTH, label="peer")
    axes.bar_label(bars, fmt="%.2f", fontsize=7)
    if floor := measured.get("floor_ms"):
        axes.axhline(floor, linestyle=":", color="black", label="all weights read once")
    axes.set_xticks(list(places), [str(batch) for batch in _BATCHES])
    axes.set_xlabel("batch")
    axes.set_title(shape)


def draw(results: list[dict[str, Any]], peers: Mapping[str, Any]) -> Figure:
    """Return one panel for each shape."""
    found = figures(results)
    figure = Figure(figsize=(3.4 * len(found), 3.2), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (shape, measured) in zip(panels, found.items(), strict=True):
        draw_steps(axes, shape, measured, peers["shapes"].get(shape, {}))
    panels[0].set_ylabel("ms per decode step")
    panels[0].legend(fontsize=7)
    figure.supxlabel(f"peer: {peers['peer']}", fontsize=6)
    return figure


def main() -> None:
    """Read a result, write a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    content = json.loads(args.result.read_text())
    results = content if isinstance(content, list) else [content]
    peers = json.loads((Path(__file__).parent / "peers.json").read_text())
    # Text that can be searched, and the same file for the same figures.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "engine"}):
        draw(results, peers).savefig(args.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
