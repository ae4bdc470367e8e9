"""Plugins that can't be used: one sentence says what is wrong and what to do; nobody else cares."""

from __future__ import annotations

import logging

import pytest

from engine.errors import BrokenPluginError, PluginError
from engine.hookspecs import API_VERSION
from engine.registry import PluginStatus, Registry
from engine.testing.distributions import PluginMaker


def status_of(registry: Registry, name: str) -> PluginStatus:
    (row,) = [row for row in registry.status() if row.claim.name == name]
    return row


def refusal(registry: Registry, name: str, kind: str = "compile_modes") -> str:
    """Load a plugin that must be refused; listing must give the very same sentence."""
    with pytest.raises(BrokenPluginError) as caught:
        registry.load(kind, name)
    row = status_of(registry, name)
    assert (row.state, row.plugin, row.error) == ("broken", None, str(caught.value))
    assert "\n" not in row.error
    return row.error


BROKEN = {
    "a missing import": (
        {"preamble": "import nothing_of_that_name"},
        (
            "cannot load {who}: ModuleNotFoundError: No module named 'nothing_of_that_name'; "
            "repair or uninstall {distribution}."
        ),
    ),
    "an import that raises over several lines": (
        {"preamble": r"raise RuntimeError('first line\nsecond line')"},
        "cannot load {who}: RuntimeError: first line; repair or uninstall {distribution}.",
    ),
    "an import that ends the process": (
        {"preamble": "import sys; sys.exit('no GPU')"},
        "cannot load {who}: SystemExit: no GPU; repair or uninstall {distribution}.",
    ),
    "a hook that raises": (
        {"returns": "1 / 0"},
        (
            "cannot load {who}: ZeroDivisionError: division by zero; "
            "repair or uninstall {distribution}."
        ),
    ),
    "no API version": (
        {"api_version": None},
        "{who} states no ENGINE_API_VERSION; add `ENGINE_API_VERSION = {current}` to it.",
    ),
    "a newer API version": (
        {"api_version": API_VERSION + 7},
        (
            "{who} was written for plugin API {newer}, this engine speaks {current}; "
            "upgrade the engine."
        ),
    ),
    "an API version that ended": (
        {"api_version": 0},
        "{who} was written for plugin API 0, this engine speaks {current}; upgrade the plugin.",
    ),
    "an API version that is no number": (
        {"api_version": "1.0"},
        (
            "{who} states ENGINE_API_VERSION = '1.0'; write the version that it was written for "
            "({current}), or the first and the last of several, as (1, 2)."
        ),
    ),
    "no hook": (
        {"source": f"ENGINE_API_VERSION = {API_VERSION}\n"},
        (
            "{who} implements no hook engine_register_compile_mode; a plugin of the group "
            "engine.compile_modes must (decorated with @hookimpl)."
        ),
    ),
    "the hook of another kind": (
        {"hook": "engine_register_backend"},
        (
            "{who} implements no hook engine_register_compile_mode; a plugin of the group "
            "engine.compile_modes must (decorated with @hookimpl)."
        ),
    ),
    "a misspelt hook": (
        {"hook": "engine_register_compile_mod"},
        (
            "{who} implements a hook engine_register_compile_mod, which doesn't exist; "
            "did you mean engine_register_compile_mode?"
        ),
    ),
    "a hook with an unknown argument": (
        {"arguments": "facts, config"},
        (
            "{who}: the hook engine_register_compile_mode asks for facts, config, but is called "
            "with no arguments; remove what it isn't given."
        ),
    ),
    "no class": (
        {"returns": "3"},
        "{who} registered 3; its hook must return a subclass of engine.strategies.CompileStrategy.",
    ),
    "an instance": (
        {"returns": "Made().NAME"},
        (
            "{who} registered 'made'; its hook must return a subclass of "
            "engine.strategies.CompileStrategy."
        ),
    ),
    "the wrong base class": (
        {"returns": "dict"},
        (
            "{who} registered <class 'dict'>; its hook must return a subclass of "
            "engine.strategies.CompileStrategy."
        ),
    ),
    "another name": (
        {"attributes": {"NAME": "other"}},
        "{who} calls itself 'other'; NAME and the entry point must agree.",
    ),
    "no summary": (
        {"attributes": {"SUMMARY": ""}},
        "{who} declares no SUMMARY; set it on Made.",
    ),
    "an abstract method": (
        {"body": "from engine.strategies import CompileStrategy\nclass Made(CompileStrategy): ..."},
        "{who} leaves compile unimplemented; define it on Made.",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_gets_a_sentence_that_says_what_to_do(
    make_plugin: PluginMaker, case: str
) -> None:
    how, sentence = BROKEN[case]
    made = make_plugin("made", distribution="broken-dist", **how)  # type: ignore[arg-type]  # each case names its own arguments
    who = f"compilation mode 'made' from broken-dist 1.0 ({made.module})"
    assert refusal(Registry(), "made") == sentence.format(
        who=who, distribution="broken-dist", current=API_VERSION, newer=API_VERSION + 7
    )


@pytest.mark.parametrize(
    ("kind", "returns", "sentence"),
    [
        ("observers", "3", "registered 3; its hook must return a callable."),
        ("break_ops", "['engine::x', 'plain']", "registered 'plain'; its hook must return a list"),
        ("break_ops", "'engine::x'", None),
        ("break_ops", "('a::b',)", None),
        ("break_ops", "7", "registered 7; its hook must return a list of operator names"),
    ],
)
def test_what_a_kind_without_a_class_registers_is_checked_too(
    make_plugin: PluginMaker, kind: str, returns: str, sentence: str | None
) -> None:
    make_plugin("made", kind=kind, body="Made = type('Made', (), {})", returns=returns)
    if sentence is None:
        assert Registry().load(kind, "made") in ("engine::x", ("a::b",))
    else:
        assert sentence in refusal(Registry(), "made", kind)


def test_an_entry_point_must_name_a_module(make_plugin: PluginMaker) -> None:
    made = make_plugin("made", distribution="some-dist")
    entry_points = made.folder / "some_dist-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text(f"[engine.compile_modes]\nmade = {made.module}:Made\n")
    assert "is no module but a ABCMeta; its entry point must name" in refusal(Registry(), "made")


def test_a_broken_plugin_disturbs_no_other_and_keeps_its_traceback(
    make_plugin: PluginMaker,
) -> None:
    make_plugin("bad", preamble="raise OSError('disk on fire')")
    make_plugin("good")
    registry = Registry()
    with pytest.raises(PluginError):
        registry.load("compile_modes", "bad")
    assert registry.load("compile_modes", "good").NAME == "good"
    assert status_of(registry, "good").state == "ok"
    assert "raise OSError" in status_of(registry, "bad").traceback
    modes = registry.status("compile_modes")
    assert [row.claim.name for row in modes if row.state != "ok"] == ["bad"]


def test_a_plugin_that_failed_can_be_loaded_once_it_is_repaired(make_plugin: PluginMaker) -> None:
    made = make_plugin("patient", preamble="raise OSError('not yet')")
    registry = Registry()
    refusal(registry, "patient")
    source = made.folder / f"{made.module}.py"
    source.write_text(source.read_text().replace("raise OSError('not yet')", "# repaired " * 9))
    assert registry.load("compile_modes", "patient").NAME == "patient"


def test_a_misspelt_group_is_listed_as_broken(make_plugin: PluginMaker) -> None:
    make_plugin("lost", distribution="some-dist")
    entry_points = make_plugin.folder / "some_dist-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text(entry_points.read_text().replace("compile_modes", "compile_mode"))
    row = status_of(Registry(), "lost")
    assert row.state == "broken"
    assert row.error.endswith(
        "the entry-point group engine.compile_mode is none of ours; "
        "did some-dist mean engine.compile_modes?"
    )


def test_a_group_of_other_software_is_left_alone(make_plugin: PluginMaker) -> None:
    info = make_plugin.folder / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[engine.themes]\ndark = x\n[engine]\nrun = x\n")
    assert {row.claim.distribution for row in Registry().status()} == {"modular-engine"}


@pytest.mark.parametrize(
    ("metadata", "entry_points"),
    [
        (None, b"[engine.backends]\nfine = module\n"),
        (b"Name: odd\nVersion: 1.0\n", b"[engine.backends]\njust some words\n"),
        (b"Name: odd\nVersion: 1.0\n", b"[engine.backends]\nname\xff = module\n"),
        (b"Version: 1.0\n", b"[engine.backends]\nfine = module\n"),
    ],
    ids=["no metadata", "no key", "no text", "no name"],
)
def test_unreadable_metadata_disturbs_nobody(
    make_plugin: PluginMaker, metadata: bytes | None, entry_points: bytes
) -> None:
    info = make_plugin.folder / "odd-1.0.dist-info"
    info.mkdir()
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    (info / "entry_points.txt").write_bytes(entry_points)
    make_plugin("good", kind="backends")
    assert Registry().load("backends", "good").NAME == "good"


def test_a_distribution_without_a_version_still_offers_its_plugins(
    make_plugin: PluginMaker,
) -> None:
    made = make_plugin("mine", distribution="odd")
    (made.folder / "odd-1.0.dist-info" / "METADATA").write_text("Name: odd\n")
    assert Registry().load("compile_modes", "mine").__module__ == made.module


def test_an_older_api_version_still_runs_and_is_told_to_upgrade(
    make_plugin: PluginMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.plugin_checks.API_VERSION", API_VERSION + 1)
    make_plugin("older", distribution="older-dist", api_version=API_VERSION)
    with caplog.at_level(logging.WARNING):
        assert Registry().load("compile_modes", "older").NAME == "older"
    (record,) = caplog.records
    assert "'older' from older-dist" in record.getMessage()
    assert record.getMessage().endswith("upgrade the plugin")
