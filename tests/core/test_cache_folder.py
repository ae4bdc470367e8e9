"""Looking at a cache directory, clearing it, and carrying artifacts from one to another."""

from __future__ import annotations

import io
import os
import random
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.artifact_comparison import compare, nearest
from engine.artifacts import FileStore, artifact_key
from engine.cache_folder import CacheFolder
from engine.errors import ConfigError

UNITS = ("piece 0 [1-64]", "piece 2 [1-64]", "piece 4 [1-64]")


def factors(unit: str, **others: str) -> dict[str, str]:
    return {"graph": f"hash of {unit}", "tokens": "1-64", "torch": "2.13", **others}


def fill(cache: Path, **others: str) -> CacheFolder:
    folder = CacheFolder(cache)
    store = FileStore(folder.root)
    for unit in UNITS:
        key = artifact_key(factors(unit, **others))
        about = {"unit": unit, "model": "tiny"}
        store.put(key, random.randbytes(500), factors(unit, **others), about)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return fill(tmp_path / "cache")


def contents(folder: CacheFolder) -> dict[str, bytes]:
    return {entry.key: entry.path.read_bytes() for entry in folder.entries()}


# Looking


def test_entries_tell_what_they_are_the_newest_first(folder: CacheFolder) -> None:
    ages = dict(zip(sorted(contents(folder)), (10, 30, 20), strict=True))
    for key, age in ages.items():
        os.utime(folder.root / f"{key}.artifact", (0, time.time() - age))
    entries = folder.entries()
    assert [entry.key for entry in entries] == sorted(ages, key=lambda key: ages[key])
    assert {entry.about["unit"] for entry in entries} == set(UNITS)
    for entry in entries:
        assert entry.factors == factors(entry.about["unit"])
        assert entry.size == entry.path.stat().st_size
        assert 9 < entry.age < 40
        assert entry.problem == ""


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "nowhere")
    assert (folder.entries(), folder.set_aside()) == ([], [])
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_is_no_artifact_is_listed_with_what_is_wrong(folder: CacheFolder) -> None:
    first, second, third = (entry.path for entry in folder.entries())
    first.write_bytes(b"")
    os.truncate(second, second.stat().st_size - 1)
    problems = {entry.path: entry.problem for entry in folder.entries()}
    assert "JSON" in problems[first]
    assert "bytes of" in problems[second]
    assert problems[third] == ""


def test_a_key_is_found_by_any_beginning_that_only_it_has(folder: CacheFolder) -> None:
    keys = sorted(contents(folder))
    for key in keys:
        length = next(n for n in range(1, 64) if sum(k.startswith(key[:n]) for k in keys) == 1)
        assert folder.find(key[:length]).key == folder.find(key[:length].upper()).key == key
    with pytest.raises(ConfigError, match=r"no artifact in .* begins? .*'zz'; it holds 3|'zz'"):
        folder.find("zz")
    with pytest.raises(ConfigError, match="no artifact in"):
        folder.find("")


def test_a_beginning_that_several_have_names_them(tmp_path: Path) -> None:
    folder, number, first = CacheFolder(tmp_path), 0, ""
    store = FileStore(folder.root)
    while True:  # until two keys begin alike
        key = artifact_key({"number": str(number)})
        store.put(key, b"", {"number": str(number)})
        alike = [e.key for e in folder.entries() if e.key[0] == key[0]]
        if len(alike) == 2:
            first = key[0]
            break
        number += 1
    with pytest.raises(ConfigError, match=f"'{first}' is ambiguous.*write more digits") as caught:
        folder.find(first)
    assert all(key[:5] in str(caught.value) for key in alike)


def test_two_artifacts_are_compared_by_their_factors() -> None:
    one, other = factors("a", torch="2.12"), factors("a", triton="3")
    assert [(d.factor, d.first, d.second) for d in compare(one, other)] == [
        ("torch", "2.12", "2.13"),
        ("triton", "", "3"),
    ]
    assert compare(one, one) == []


def test_the_nearest_artifact_is_the_same_graph_of_another_kind() -> None:
    stored = {name: factors(name, torch="2.12", cpu="old") for name in ("a", "b")}
    stored["c"] = factors("c")
    told = nearest(((artifact_key(f), f) for f in stored.values()), factors("a", cpu="new"))
    assert artifact_key(stored["a"])[:12] in told
    assert "cpu (old and new), torch (2.12 and 2.13)" in told
    assert "graph" not in told
    assert nearest((), factors("a")) == ", which holds none"


def test_long_values_are_shown_where_they_begin_to_differ() -> None:
    stored = factors("a", backend="x" * 500 + "left" + "y" * 500)
    told = nearest([("k" * 64, stored)], factors("a", backend="x" * 500 + "right" + "y" * 500))
    assert "left" in told
    assert "right" in told
    assert len(told) < 250


# Removing


def test_what_is_removed_is_gone_and_counted(folder: CacheFolder) -> None:
    first, *others = folder.entries()
    assert folder.remove([first, first]) == first.size
    assert [entry.key for entry in folder.entries()] == [entry.key for entry in others]


# Carrying


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.xz", "a.tgz"])
def test_an_archive_brings_everything_to_an_empty_directory(
    folder: CacheFolder, tmp_path: Path, name: str
) -> None:
    assert folder.export(tmp_path / name, folder.entries()) == []
    other = CacheFolder(tmp_path / "other")
    result = other.import_archive(tmp_path / name)
    assert (sorted(result.added), result.kept, result.refused) == (sorted(contents(folder)), [], {})
    assert contents(other) == contents(folder)
    assert {path.suffix for path in other.root.iterdir()} == {".artifact"}
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_is_there_stays_as_it_is(folder: CacheFolder, tmp_path: Path) -> None:
    folder.export(tmp_path / "a.tar", folder.entries())
    other = fill(tmp_path / "other")  # the same keys with other bytes
    before = contents(other)
    missing = other.entries()[0]
    other.remove([missing])
    result = other.import_archive(tmp_path / "a.tar")
    assert (result.added, sorted(result.kept)) == ([missing.key], sorted({*before} - {missing.key}))
    after = contents(other)
    assert {key: after[key] for key in result.kept} == {key: before[key] for key in result.kept}


def test_a_damaged_one_that_is_there_is_replaced(folder: CacheFolder, tmp_path: Path) -> None:
    folder.export(tmp_path / "a.tar", folder.entries())
    wanted = contents(folder)
    victim = folder.entries()[0]
    victim.path.write_bytes(b"broken")
    assert folder.import_archive(tmp_path / "a.tar").added == [victim.key]
    assert contents(folder) == wanted


def test_a_damaged_artifact_is_not_exported(folder: CacheFolder, tmp_path: Path) -> None:
    entries = folder.entries()
    content = entries[1].path.read_bytes()
    entries[1].path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (bad,) = folder.export(tmp_path / "a.tar", entries)
    assert (bad.key, "checksum" in bad.problem) == (entries[1].key, True)
    other = CacheFolder(tmp_path / "other")
    other.import_archive(tmp_path / "a.tar")
    assert {e.key for e in other.entries()} == {entries[0].key, entries[2].key}


def rewrite(archive: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> None:
    """Change the first artifact of an archive."""
    with tarfile.open(archive) as source:
        members = [(m.name, source.extractfile(m).read()) for m in source]  # type: ignore[union-attr]  # files only
    members[0] = change(*members[0])
    with tarfile.open(archive, "w") as target:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            target.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name, content: (name, content[:-1]), "bytes of"),
        (lambda name, content: (name, content[:-1] + bytes([content[-1] ^ 8])), "checksum"),
        (lambda name, content: (name, b""), "JSON"),
        (lambda name, content: (f"artifacts/{'0' * 64}.artifact", content), "another key"),
        (lambda name, content: ("../../readme.txt", content), "no artifact"),
        (lambda name, content: ("/etc/passwd", b"root"), "no artifact"),
    ],
)
def test_a_bad_member_is_refused_by_name_and_the_others_are_taken(
    folder: CacheFolder,
    tmp_path: Path,
    change: Callable[[str, bytes], tuple[str, bytes]],
    reason: str,
) -> None:
    archive = tmp_path / "a.tar"
    folder.export(archive, folder.entries())
    rewrite(archive, change)
    with tarfile.open(archive) as reader:
        name = reader.getnames()[0]
    other = CacheFolder(tmp_path / "other")
    result = other.import_archive(archive)
    assert list(result.refused) == [name]
    assert reason in result.refused[name]
    assert len(result.added) == len(other.entries()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "cache", "other"]


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as target:
        link = tarfile.TarInfo(f"artifacts/{'0' * 64}.artifact")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        target.addfile(link)
        target.addfile(tarfile.TarInfo("complete"))
    folder = CacheFolder(tmp_path / "cache")
    assert list(folder.import_archive(archive).refused) == [link.name]
    assert folder.entries() == []


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"\x1f\x8b" + bytes(40)])
def test_what_is_no_archive_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    archive = tmp_path / "a.tar"
    if content is not None:
        archive.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.tar: "):
        CacheFolder(tmp_path / "cache").import_archive(archive)


@pytest.mark.parametrize("length", [700, 1536, 2000, 2600, 4608])
def test_an_archive_that_ends_early_says_so(
    folder: CacheFolder, tmp_path: Path, length: int
) -> None:
    archive = tmp_path / "a.tar"
    folder.export(archive, folder.entries())
    os.truncate(archive, length)
    with pytest.raises(ConfigError, match="no whole archive"):
        CacheFolder(tmp_path / "other").import_archive(archive)


def test_places_that_cannot_be_written_are_one_sentence(
    folder: CacheFolder, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/a\.tar: can't be written"):
        folder.export(tmp_path / "file" / "a.tar", folder.entries())
    folder.export(tmp_path / "a.tar", folder.entries())
    with pytest.raises(ConfigError, match="can't be written"):
        CacheFolder(tmp_path / "file").import_archive(tmp_path / "a.tar")
