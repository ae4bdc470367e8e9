"""Draws bars: a panel for each unit, the spread as a whisker, the floor as a line."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from engine_tools.bench.results import Chart, number

_BAR_HEIGHT = 0.32
"""Inches of a bar."""


def draw(charts: Sequence[Chart], form: str) -> bytes:
    """Return a picture of charts below one another.

    Args:
        charts: those without bars are left out.
        form: `svg` or `png`.
    """
    # Not pyplot, which keeps figures in a global list and looks for a display.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    charts = [chart for chart in charts if chart.bars]
    heights = [1 + len(chart.bars) for chart in charts] or [1]
    figure = Figure(figsize=(9, _BAR_HEIGHT * sum(heights) + 0.6), layout="constrained")
    panels = figure.subplots(len(heights), squeeze=False, height_ratios=heights)
    for row, chart in zip(panels, charts, strict=False):
        _panel(row[0], chart)
    picture = BytesIO()
    # No date and no random names: the same figures make the same file.
    metadata = {"Date": None} if form == "svg" else {}
    with rc_context({"svg.hashsalt": "engine"}):
        figure.savefig(picture, format=form, dpi=150, metadata=metadata)
    return picture.getvalue()


def _panel(axes: Any, chart: Chart) -> None:
    values = [bar.value for bar in chart.bars]
    spread = [
        [max(0.0, bar.value - bar.low) for bar in chart.bars],
        [max(0.0, bar.high - bar.value) for bar in chart.bars],
    ]
    places = range(len(values))
    axes.barh(places, values, xerr=spread, color="#4878a8", ecolor="#333333", capsize=2)
    axes.set_yticks(places, [bar.label for bar in chart.bars], fontsize=8)
    for place, bar in zip(places, chart.bars, strict=True):
        text = f" {number(bar.value)}" + (f" ({bar.note})" if bar.note else "")
        axes.text(bar.high, place, text, va="center", fontsize=7)
    if chart.floor is not None:
        axes.axvline(chart.floor, color="#b04040", linestyle="--", label="floor")
        axes.legend(fontsize=7, loc="lower right")
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    axes.set_title(chart.title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
