"""`engine plugins` shows what works and what doesn't, and disturbs nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Engine = Callable[..., Any]

MODE = """
from pydantic import BaseModel, ConfigDict, Field
from engine.hookspecs import hookimpl
ENGINE_API_VERSION = {version}

class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    depth: int = Field(default=3, ge=1)
    \"\"\"How deep.\"\"\"

@hookimpl
def engine_register_compile_mode():
    from engine.strategies import CompiledModel, CompileReport, CompileStrategy
    from engine.plugin import Numerics

    class Odd(CompileStrategy):
        \"\"\"Goes its own way,
        on two lines.\"\"\"

        NAME = "{name}"
        SUMMARY = "an odd mode"
        ALIASES = ("strange",)
        OPTIONS = Options
        DEVICES = frozenset({{"cpu", "tpu"}})
        NUMERICS = Numerics.TOLERANCE
        SETTINGS = frozenset({{"compile_sizes"}})

        def compile(self, job):
            return CompiledModel(call=job.model, report=CompileReport())

    return Odd
"""
GOOD = MODE.format(version=1, name="odd")


def rows(engine: Engine, *arguments: str) -> list[dict[str, str]]:
    outcome = engine("plugins", "--json", *arguments)
    assert outcome.code == 0
    found: list[dict[str, str]] = json.loads(outcome.out)
    return found


def test_the_list_has_what_is_installed_with_summaries(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "compile_modes", "odd", GOOD)
    modes = {row["name"]: row for row in rows(engine, "--kind", "compile-mode")}
    assert modes["odd"] == {
        "kind": "compile_modes",
        "name": "odd",
        "distribution": "stranger",
        "version": "1.5",
        "state": "ok",
        "summary": "an odd mode",
    }
    assert modes["none"]["distribution"] == "modular-engine"
    table = engine("plugins", "--kind", "compile_modes").out.splitlines()
    assert table[0].split() == ["kind", "name", "distribution", "version", "state", "summary"]
    assert any(line.split()[:5] == ["compile_modes", "odd", "stranger", "1.5", "ok"]
               for line in table)  # fmt: skip


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('no libmagic here')", "ImportError: no libmagic here"),
        ("import module_that_is_nowhere", "No module named 'module_that_is_nowhere'"),
        (MODE.format(version=99, name="odd"), "was written for plugin API 99"),
        (MODE.format(version=1, name="other"), "calls itself 'other'"),
        (GOOD.replace("engine_register_compile_mode", "engine_register_compile_mood"), "odd"),
        (GOOD.replace("def compile(self, job)", "def compil(self, job)"), "unimplemented"),
    ],
)
def test_a_broken_plugin_is_shown_with_the_reason_and_disturbs_no_command(
    engine: Engine, install: Callable[..., None], source: str, reason: str
) -> None:
    before = {row["name"]: row["state"] for row in rows(engine, "--kind", "compile_modes")}
    install("stranger", "compile_modes", "odd", source)
    modes = {row["name"]: row for row in rows(engine, "--kind", "compile_modes")}
    assert modes["odd"]["state"] == "broken"
    assert reason in modes["odd"]["summary"]
    assert {n: row["state"] for n, row in modes.items() if n != "odd"} == before
    assert engine("--version").code == 0
    assert engine("explain", "--help").code == 0
    assert engine("plugins", "show", "compile_modes/none").code == 0


def test_selecting_a_broken_plugin_ends_with_its_traceback_and_2(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "compile_modes", "odd", "raise ImportError('no libmagic here')")
    outcome = engine("plugins", "show", "odd")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert "stranger_module.py" in outcome.err
    last = outcome.err.splitlines()[-1]
    assert last.startswith("engine: cannot load compilation mode 'odd' from stranger 1.5")
    assert "ImportError: no libmagic here" in last


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_two_claims_to_a_name_are_shown_and_selected_by_distribution(
    engine: Engine, install: Callable[..., None], order: tuple[str, str]
) -> None:
    for distribution in order:
        install(distribution, "compile_modes", "odd", GOOD)
    claims = [row for row in rows(engine, "--kind", "compile_modes") if row["name"] == "odd"]
    assert [row["state"] for row in claims] == ["duplicate", "duplicate"]
    assert {row["summary"].split(";")[0] for row in claims} == {
        "select it as first:odd",
        "select it as second:odd",
    }
    outcome = engine("plugins", "show", "odd")
    assert outcome.code == 2
    assert "claimed by two distributions" in outcome.err
    assert "'odd' from first 1.5" in outcome.err
    assert "'odd' from second 1.5" in outcome.err
    shown = engine("plugins", "show", "second:odd")
    assert shown.code == 0
    assert "second 1.5" in shown.out


def test_show_tells_everything_that_a_plugin_declares(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "compile_modes", "odd", GOOD)
    (content,) = json.loads(engine("plugins", "show", "ODD", "--json").out)
    assert content["summary"] == "an odd mode"
    assert content["distribution"] == "stranger 1.5"
    assert content["entry_point"] == "stranger_module"
    assert content["file"].endswith("stranger_module.py")
    assert content["about"] == "Goes its own way, on two lines."
    assert content["aliases"] == ["strange"]
    assert content["numerics"] == "tolerance"
    assert content["startup_cost"] == "none"
    assert content["devices"] == ["cpu", "tpu"]
    assert content["settings_read"] == ["compile_sizes"]
    assert content["options"] == [
        {"name": "depth", "type": "int", "default": 3, "help": "How deep."}
    ]
    text = engine("plugins", "show", "odd").out
    for expected in ("compile_modes/odd", "tolerance", "cpu, tpu", "How deep.", "compile_sizes"):
        assert expected in text


def test_show_knows_aliases_and_a_name_in_two_kinds(
    engine: Engine, install: Callable[..., None]
) -> None:
    install("stranger", "compile_modes", "odd", GOOD)
    assert "compile_modes/odd" in engine("plugins", "show", "strange").out
    both = json.loads(engine("plugins", "show", "none", "--json").out)
    assert {content["kind"] for content in both} == {"compile_modes", "cudagraph_modes"}
    for one in (["compile_modes/none"], ["none", "--kind", "compile-modes"]):
        (content,) = json.loads(engine("plugins", "show", *one, "--json").out)
        assert content["kind"] == "compile_modes"


def test_show_prints_what_each_level_of_a_preset_stands_for(engine: Engine) -> None:
    (content,) = json.loads(engine("plugins", "show", "presets/default", "--json").out)
    assert set(content["levels"]) == {"0", "1", "2", "3"}
    text = engine("plugins", "show", "presets/default").out
    for level in content["levels"].values():
        assert level["summary"] in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "defualt"], "no plugin is called 'defualt'. Did you mean 'default'?"),
        (["show", "backends/none"], "no plugin is called 'backends/none'."),
        (["--kind", "backend_s"], "Did you mean 'backends'?"),
        (["shwo"], "No such command"),
    ],
)
def test_a_misspelling_is_answered_with_a_suggestion(
    engine: Engine, arguments: list[str], says: str
) -> None:
    outcome = engine("plugins", *arguments)
    assert outcome.code == 2
    assert says in outcome.err


def test_a_blocked_plugin_is_not_there(
    engine: Engine, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("stranger", "compile_modes", "odd", GOOD)
    monkeypatch.setenv("ENGINE_BLOCK_PLUGINS", "stranger:odd")
    assert "odd" not in {row["name"] for row in rows(engine, "--kind", "compile_modes")}
