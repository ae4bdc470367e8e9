"""The contract's version: ranges, the one before, signatures that nobody changes unnoticed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from docs import plugin_snapshot

from engine import plugin_checks
from engine.errors import BrokenPluginError
from engine.hookspecs import API_VERSION
from engine.registry import Registry
from engine.testing.distributions import PluginMaker


@pytest.fixture
def speaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Let the engine speak a range of versions."""

    def set_range(oldest: int, current: int) -> None:
        monkeypatch.setattr(plugin_checks, "OLDEST_API_VERSION", oldest)
        monkeypatch.setattr(plugin_checks, "API_VERSION", current)

    return set_range


@pytest.mark.parametrize("stated", [2, (1, 2), (2, 2), (2, 5)])
def test_a_plugin_for_the_current_version_loads_in_silence(
    make_plugin: PluginMaker,
    speaks: Callable[[int, int], None],
    caplog: pytest.LogCaptureFixture,
    stated: Any,
) -> None:
    speaks(1, 2)
    make_plugin("fast", api_version=stated)
    with caplog.at_level(logging.WARNING):
        assert Registry().load("compile_modes", "fast").NAME == "fast"
    assert not caplog.records


@pytest.mark.parametrize("stated", [2, (1, 2)])
def test_a_plugin_for_the_version_before_runs_with_one_line(
    make_plugin: PluginMaker,
    speaks: Callable[[int, int], None],
    caplog: pytest.LogCaptureFixture,
    stated: Any,
) -> None:
    speaks(2, 3)
    make_plugin("fast", distribution="seasoned", api_version=stated)
    registry = Registry()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            plugin = registry.load("compile_modes", "fast")
    assert plugin().OPTIONS() is not None
    (line,) = [record.getMessage() for record in caplog.records]
    assert "from seasoned 1.0" in line
    assert "written for plugin API 2; the current one is 3" in line
    assert "upgrade the plugin" in line


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (1, "written for plugin API 1, this engine speaks 2 to 3; upgrade the plugin"),
        ((4, 5), "written for plugin API (4, 5), this engine speaks 2 to 3; upgrade the engine"),
        ((3, 1), "write the version that it was written for"),
        ((1, 2, 3), "write the version that it was written for"),
        ("1", "write the version that it was written for"),
        (True, "write the version that it was written for"),
    ],
)
def test_another_version_is_refused_with_what_to_upgrade(
    make_plugin: PluginMaker, speaks: Callable[[int, int], None], stated: Any, says: str
) -> None:
    speaks(2, 3)
    make_plugin("fast", api_version=stated)
    with pytest.raises(BrokenPluginError) as caught:
        Registry().load("compile_modes", "fast")
    assert says in str(caught.value)


# The record of signatures


def test_no_signature_differs_from_the_record() -> None:
    """Run `python -m docs.plugin_snapshot` after a change, and note it if plugins must follow."""
    kept = plugin_snapshot.recorded()
    added, followed = plugin_snapshot.differences(kept["surface"], plugin_snapshot.surface())
    assert (added, followed) == ([], []), "run: python -m docs.plugin_snapshot"
    assert kept["version"] == API_VERSION


def test_the_page_has_the_current_version() -> None:
    assert plugin_snapshot.notes().strip()


OLD = {
    "engine.x.Base": "Plugin",
    "engine.x.Base.run": "(self, job: 'Job') -> 'int'",
    "engine.x.Job": "object",
    "hook engine_register_x (x)": "(self) -> 'type[Base]'",
}


@pytest.mark.parametrize(
    ("change", "added", "followed"),
    [
        ({"engine.x.Base.more": "(self) -> 'int'"}, 1, 0),
        ({"engine.x.Job.lazy": "bool"}, 1, 0),
        ({"hook engine_register_y (y)": "(self) -> 'type[Base]'"}, 1, 0),
        ({"engine.x.Base.must": "abstract (self) -> 'int'"}, 0, 1),
        ({"engine.x.Job.must": "required int"}, 0, 1),
        ({"engine.x.New": "Plugin", "engine.x.New.must": "abstract (self) -> 'int'"}, 2, 0),
        ({"engine.x.Base.run": "(self, job: 'Job', more: 'int') -> 'int'"}, 0, 1),
        ({"hook engine_register_x (x)": "(self, facts: 'Facts') -> 'type[Base]'"}, 0, 1),
        ({"engine.x.Base.run": None}, 0, 1),
    ],
)
def test_what_plugins_must_follow_is_told_from_what_is_new(
    change: dict[str, str | None], added: int, followed: int
) -> None:
    new = {name: text for name, text in {**OLD, **change}.items() if text is not None}
    found = plugin_snapshot.differences(OLD, new)
    assert (len(found[0]), len(found[1])) == (added, followed)


def test_a_change_that_is_not_noted_is_not_recorded(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surface = plugin_snapshot.surface()
    name = "engine.strategies.Backend.compile"
    record, page = tmp_path / "docs" / "record.json", tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(f"# Page\n\n### Version {API_VERSION}\n\nThe first.\n")
    monkeypatch.setattr(plugin_snapshot, "RECORD", record)
    monkeypatch.setattr(plugin_snapshot, "PAGE", page)
    assert plugin_snapshot.main([]) == 0
    monkeypatch.setattr(plugin_snapshot, "surface", lambda: {**surface, name: "(self) -> 'int'"})
    before = record.read_text()
    assert plugin_snapshot.main(["--check"]) == plugin_snapshot.main([]) == 1
    assert f"changed (not noted): {name}" in capsys.readouterr().out
    assert record.read_text() == before
    page.write_text(page.read_text() + f"\n- `{name}` takes nothing any more.\n")
    assert plugin_snapshot.main([]) == 0
    assert plugin_snapshot.main(["--check"]) == 0
