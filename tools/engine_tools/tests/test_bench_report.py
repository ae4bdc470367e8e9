"""Reports: one file that needs nothing else, refused beforehand where it can't be written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from engine import ConfigError
from engine_tools.bench.chart import draw
from engine_tools.bench.figures import Figure
from engine_tools.bench.report import check_outputs, write_report
from engine_tools.bench.results import Result

RESULT = Result(
    kind="latency",
    machine={"processor": "a <fast> one"},
    settings={"dtype": "float32"},
    workload={"batch_size": 2},
    figures=(
        Figure("ITL", "ms", (1.0, 2.0), {"p50": 1.5, "p90": 1.9, "p99": 2.0}, floor=0.5),
        Figure("requests", "requests/s", (5.0,)),
    ),
    memory={"host": 2**30},
    notes=("a note",),
    failures={"<script>": 2},
)


def test_a_page_holds_everything_itself(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(RESULT, page)
    text = page.read_text()
    for part in ("a note", "1,024 MiB", "a &lt;fast&gt; one", "float32", "&lt;script&gt;"):
        assert part in text
    assert text.count("<svg") == 1
    assert "<script" not in text
    # Nothing is loaded from elsewhere; the drawing refers to its own parts.
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)"', text))


def test_the_same_figures_give_the_same_drawing() -> None:
    assert draw(RESULT.charts(), "svg") == draw(RESULT.charts(), "svg")


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    picture = tmp_path / "report.png"
    write_report(RESULT, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_report_without_figures_is_drawn_too(tmp_path: Path) -> None:
    write_report(Result("serve", {}, {}, {}, ()), tmp_path / "report.html")


def test_what_could_not_be_written_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_outputs(tmp_path / "a.json", tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"must end in \.html or \.png"):
        check_outputs(None, tmp_path / "a.pdf")
    with pytest.raises(ConfigError, match=r"--json=.*can't be written"):
        check_outputs(tmp_path / "absent" / "a.json", None)
    # As `import` finds it where it isn't installed.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'modular-engine\[report\]'"):
        check_outputs(None, tmp_path / "a.html")
