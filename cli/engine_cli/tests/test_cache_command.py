"""`engine cache`: the artifacts of a directory, as people and programs see them."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts import FileStore, artifact_key
from engine.cache_folder import CacheFolder
from engine.cache_key import settings_factors
from engine.config import EngineConfig
from engine.settings_schema import Schema
from engine_cli.state import State
from engine_server.config import ServerConfig

Engine = Callable[..., Any]


def put(cache: Path, unit: str, **factors: str) -> str:
    """Put one artifact into a cache directory and return its key."""
    factors = {"graph": unit, "backend": "keeping/1/{}", "device": "cpu", **factors}
    key = artifact_key(factors)
    about = {"unit": unit, "model": "tiny"}
    FileStore(CacheFolder(cache).root).put(key, os.urandom(3000), factors, about)
    return key


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory that ENGINE_CACHE_DIR names, with nothing in it."""
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_list_has_a_row_for_each_artifact_and_a_total(engine: Engine, cache: Path) -> None:
    keys = [put(cache, f"piece {number} [1-64]") for number in range(3)]
    outcome = engine("cache", "list")
    assert outcome.code == 0
    head, *rows, total = outcome.out.splitlines()
    assert head.split() == ["key", "size", "age", "unit", "model", "backend", "device"]
    assert sorted(row.split()[0] for row in rows) == sorted(key[:12] for key in keys)
    assert all("tiny   keeping  cpu" in row for row in rows)
    assert total.startswith("3 artifacts, ")
    assert total.endswith(str(cache / "artifacts"))


def test_the_list_as_json_has_everything(engine: Engine, cache: Path, tmp_path: Path) -> None:
    key = put(cache, "model [1-64]", torch="2.13")
    listed = json.loads(engine("cache", "list", "--json").out)
    (artifact,) = listed["artifacts"]
    assert (artifact["key"], artifact["problem"]) == (key, "")
    assert artifact["factors"]["torch"] == "2.13"
    assert artifact["about"] == {"unit": "model [1-64]", "model": "tiny"}
    assert listed["total_bytes"] == artifact["size"]
    empty = engine("cache", "list", "--cache-dir", str(tmp_path / "other"))
    assert empty.out.startswith("0 artifacts, 0 B in ")


def test_bad_artifacts_are_shown_as_such(engine: Engine, cache: Path) -> None:
    broken, rejected = put(cache, "a"), put(cache, "b")
    store = FileStore(CacheFolder(cache).root)
    store.path(broken).write_bytes(b"")
    store.reject(rejected, "wrong")
    out = engine("cache", "list").out
    assert "bad: its first line is no JSON" in out
    assert "1 bad ones set aside" in out


def test_explain_shows_the_factors_in_which_two_artifacts_differ(
    engine: Engine, cache: Path
) -> None:
    first, second = put(cache, "a", torch="2.12"), put(cache, "a", torch="2.13")
    outcome = engine("cache", "explain", first[:8], second[:8])
    assert outcome.code == 0
    head, row, total = outcome.out.splitlines()
    assert head.split() == ["factor", first[:12], second[:12], "differs"]
    assert row.split() == ["torch", "2.12", "2.13", "yes"]
    assert total == "1 of 4 factors differ"
    assert "graph" in engine("cache", "explain", "-v", first, second).out
    content = json.loads(engine("cache", "explain", "--json", first, second).out)
    assert content["differ"] == ["torch"]
    assert content["second"]["factors"]["torch"] == "2.13"
    assert engine("cache", "explain", first, first).out == "0 of 4 factors differ\n"


@pytest.mark.parametrize(
    "arguments", [("explain", "zz", "zz"), ("clear", "--yes", "zz"), ("export", "x.tar", "zz")]
)
def test_a_key_that_nothing_has_is_one_sentence_and_2(
    engine: Engine, cache: Path, arguments: tuple[str, ...]
) -> None:
    put(cache, "a")
    outcome = engine("cache", *arguments)
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith("engine: no artifact in ")
    assert "'zz'; it holds 1" in line
    assert len(CacheFolder(cache).entries()) == 1


def test_clear_asks_first(engine: Engine, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, "a")
    for answer, left in (("n\n", 1), ("", 1), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        outcome = engine("cache", "clear")
        assert "Remove 1 artifacts" in outcome.err
        assert (outcome.code == 0) == (left == 0)
        assert len(CacheFolder(cache).entries()) == left
    assert "nothing to remove" in engine("cache", "clear").out


def test_clear_removes_what_was_named(engine: Engine, cache: Path) -> None:
    old, new, other, bad = (put(cache, unit) for unit in "abcd")
    folder = CacheFolder(cache)
    FileStore(folder.root).reject(bad, "wrong")
    os.utime(folder.find(old).path, (0, time.time() - 3 * 86400))

    def clear(*arguments: str) -> set[str]:
        assert engine("cache", "clear", "--yes", *arguments).code == 0
        return {entry.key for entry in (*folder.entries(), *folder.set_aside())}

    assert clear("--older-than", "4") == {old, new, other, bad}
    assert clear("--older-than", "2.5") == {new, other, bad}
    assert clear("--quarantine") == {new, other}
    assert clear(new[:10]) == {other}
    assert engine("cache", "clear", "--quarantine", other).code == 2
    assert clear() == set()


def test_export_and_import_carry_artifacts(engine: Engine, cache: Path, tmp_path: Path) -> None:
    keys = [put(cache, unit) for unit in "abc"]
    archive, other = str(tmp_path / "a.tar.gz"), str(tmp_path / "other")
    assert engine("cache", "export", archive).out == f"wrote 3 artifacts to {archive}\n"
    assert engine("cache", "export", str(tmp_path / "one.tar"), keys[0][:9]).code == 0
    outcome = engine("cache", "import", str(tmp_path / "one.tar"), "--cache-dir", other)
    assert outcome.out.startswith("took 1 artifacts into ")
    outcome = engine("cache", "import", archive, "--cache-dir", other)
    assert outcome.code == 0
    assert "took 2 artifacts" in outcome.out
    assert "1 were there already, 0 refused" in outcome.out
    assert {entry.key for entry in CacheFolder(Path(other)).entries()} == set(keys)


def test_bad_artifacts_are_left_out_and_refused_by_name(
    engine: Engine, cache: Path, tmp_path: Path
) -> None:
    import tarfile

    put(cache, "a")
    bad = FileStore(CacheFolder(cache).root).path(put(cache, "b"))
    bad.write_bytes(bad.read_bytes()[:-1] + b"!")
    outcome = engine("cache", "export", str(tmp_path / "a.tar"))
    assert outcome.code == 2
    assert f"left out {bad.name}: its checksum" in outcome.err
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        archive.add(bad, f"artifacts/{bad.name}")
        archive.addfile(tarfile.TarInfo("complete"))
    outcome = engine("cache", "import", str(tmp_path / "b.tar"), "--cache-dir", str(tmp_path / "o"))
    assert outcome.code == 2
    assert f"refused artifacts/{bad.name}: its checksum" in outcome.err
    assert "took 0 artifacts" in outcome.out


def test_no_setting_of_the_server_is_in_a_key(sources: Callable[..., Any]) -> None:
    def factors(*arguments: str) -> dict[str, str]:
        said = sources(*arguments, models=(EngineConfig, ServerConfig))
        return settings_factors(said.settings(State()).config)

    plain = factors("--dtype", "float32")
    for field in Schema.of(ServerConfig).fields.values():
        assert field.name not in plain
    server = ("--port", "1", "--log-level", "debug", "--host", "::1", "--served-model-name", "x")
    engine = ("--kv-cache-memory", "1GiB", "--max-queue", "7", "--no-enable-prefix-caching")
    assert factors("--dtype", "float32", *server, *engine) == plain
    assert factors("--dtype", "float16") != plain
