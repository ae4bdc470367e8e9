"""Tables and progress: drawn on a terminal, plain text for programs."""

from __future__ import annotations

import io

import pytest

from engine.config import EngineConfig
from engine.events import (
    Notice,
    PhaseAdvanced,
    PhaseFinished,
    PhaseStarted,
    SettingsResolved,
    StepRan,
)
from engine.resolution import Record, Resolution
from engine_cli.settings_table import interesting, show_settings
from engine_cli.startup import StartupProgress
from engine_cli.tables import write_table

RECORDS = (
    Record("model", "", "LlamaForCausalLM", "default", "2 layers"),
    Record("compilation_config.mode", "fast", "none", "level 2", "fast is not installed", "get it"),
    Record("max_model_len", "", "2048", "model", "the model's context"),
    Record("seed", "7", "7", "--seed", "asked for"),
)
RESOLUTION = Resolution(EngineConfig(), RECORDS)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_short_table_has_the_main_choices_what_was_asked_and_what_differs() -> None:
    assert [r.setting for r in interesting(RECORDS)] == ["model", "compilation_config.mode", "seed"]


@pytest.mark.parametrize("verbose", [False, True])
def test_the_table_is_aligned_text_for_programs(verbose: bool) -> None:
    stream = io.StringIO()
    show_settings(RESOLUTION, stream, verbose=verbose)
    head, *lines = stream.getvalue().splitlines()
    assert head.split("  ")[0] == "setting"
    assert len(lines) == (4 if verbose else 3)
    mode = next(line for line in lines if line.startswith("mode "))
    assert mode[head.index("requested") :].startswith("fast ")
    assert mode[head.index("effective") :].startswith("none ")
    assert mode.endswith("fast is not installed; get it")
    assert "\x1b" not in stream.getvalue()
    assert "compilation_config" not in stream.getvalue()


def test_the_table_on_a_terminal_keeps_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    show_settings(RESOLUTION, stream)
    for word in ("requested", "LlamaForCausalLM", "fast is not installed", "--seed"):
        assert word in stream.getvalue()
    assert "─" in stream.getvalue()


def test_text_in_a_table_is_never_markup() -> None:
    stream = Terminal()
    write_table(stream, ("a",), [["[bold]x[/bold]"]])
    assert "[bold]x[/bold]" in stream.getvalue()


def test_start_up_is_a_line_for_each_phase_and_notice_for_programs() -> None:
    stream = io.StringIO()
    with StartupProgress(stream, verbose=True) as progress:
        progress(SettingsResolved(RESOLUTION))
        progress(PhaseStarted("load", 3))
        progress(PhaseAdvanced("load", 1, 3, "layer"))
        progress(PhaseFinished("load", 1.26))
        progress(Notice("mode: [x] -> y"))
        progress(StepRan("none", "eager", 1, 1))
    *table, load, notice = stream.getvalue().splitlines()
    assert len(table) == len(RECORDS) + 1
    assert (load, notice) == ("load: 1.3 s", "mode: [x] -> y")


def test_a_quiet_start_up_shows_nothing() -> None:
    stream = io.StringIO()
    with StartupProgress(stream, quiet=True) as progress:
        for event in (SettingsResolved(RESOLUTION), PhaseFinished("load", 1), Notice("x")):
            progress(event)
    assert stream.getvalue() == ""


def test_start_up_is_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with StartupProgress(stream) as progress:
        progress(SettingsResolved(RESOLUTION))
        progress(PhaseStarted("compile"))
        progress(PhaseAdvanced("compile", 2, 4, "piece 2"))
        progress(Notice("[slow] path"))
        progress(PhaseFinished("compile", 2.0))
        progress(PhaseFinished("never started", 1.0))
    assert "compile" in stream.getvalue()
    assert "2.0 s" in stream.getvalue()
    assert "[slow] path" in stream.getvalue()


def test_bars_are_taken_down_when_the_start_fails() -> None:
    stream = Terminal()

    def start() -> None:
        with StartupProgress(stream) as progress:
            progress(SettingsResolved(RESOLUTION))
            progress(PhaseStarted("load"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start()
    assert stream.getvalue().endswith("\x1b[?25h")
