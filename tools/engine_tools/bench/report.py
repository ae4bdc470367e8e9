"""Writes results as JSON, as a picture, or as one HTML file that needs nothing else."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from engine.errors import ConfigError
from engine_tools.bench.results import Presentable

PAGE = Path(__file__).with_name("report.html.jinja")
_ENDINGS = (".html", ".png")


def check_outputs(json_file: Path | None, report: Path | None) -> None:
    """Refuse, before anything runs, files that couldn't be written afterwards.

    Raises:
        ConfigError: names the flag, the file and what to change.
    """
    if json_file is not None:
        _check_writable("--json", json_file)
    if report is None:
        return
    if report.suffix not in _ENDINGS:
        raise ConfigError(f"--report={report}: its name must end in {' or '.join(_ENDINGS)}")
    if find_spec("matplotlib") is None:
        raise ConfigError(
            f"--report={report}: charts need matplotlib, which isn't installed; "
            "pip install 'modular-engine[report]', or use --json"
        )
    _check_writable("--report", report)


def _check_writable(flag: str, path: Path) -> None:
    there = path.exists()
    try:
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"{flag}={path}: can't be written ({error.strerror}); name another file"
        ) from error


def write_json(result: Presentable, path: Path) -> None:
    """Write everything that was measured."""
    path.write_text(json.dumps(result.to_dict(), indent=2) + "\n")


def write_report(result: Presentable, path: Path) -> None:
    """Write a page or a picture, by the ending of the name."""
    from engine_tools.bench.chart import draw

    if path.suffix == ".png":
        path.write_bytes(draw(result.charts(), "png"))
        return
    from jinja2 import Environment, StrictUndefined

    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(PAGE.read_text())
    path.write_text(page.render(result=result, chart=_inline(draw(result.charts(), "svg"))))


def _inline(svg: bytes) -> str:
    """Leave out what only a file of its own may have: the XML declaration."""
    from markupsafe import Markup

    text = svg.decode()
    return Markup(text[text.index("<svg") :])  # noqa: S704 - matplotlib has escaped its text
