"""The artifact store: nothing half-written is ever read, nothing bad ever stops a start."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts import (
    FileStore,
    MemoryStore,
    artifact_key,
    default_cache_dir,
    open_store,
)
from engine.config import CompilationConfig, EngineConfig
from engine.errors import ConfigError

DATA = os.urandom(5000)
FACTORS = {"graph": "abc", "torch": "2.13"}
KEY = artifact_key(FACTORS)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    made = FileStore(tmp_path / "cache")
    made.put(KEY, DATA, FACTORS)
    return made


def test_what_was_put_is_found_by_another_store_of_the_directory(store: FileStore) -> None:
    assert FileStore(store.root).get(KEY) == DATA
    assert store.get(artifact_key({"graph": "other"})) is None
    assert [path.name for path in store.root.iterdir()] == [f"{KEY}.artifact"]


def test_a_key_depends_on_every_factor_and_not_on_their_order() -> None:
    assert artifact_key(dict(reversed(FACTORS.items()))) == KEY
    others = [{**FACTORS, "graph": "abd"}, {**FACTORS, "new": ""}, {"graph": "abc"}]
    assert len({KEY, *map(artifact_key, others)}) == 4


def test_the_first_line_tells_what_shaped_an_artifact(store: FileStore) -> None:
    with store.path(KEY).open("rb") as file:
        assert json.loads(file.readline())["factors"] == FACTORS


def test_no_path_of_the_machine_is_in_a_file(store: FileStore) -> None:
    assert str(store.root).encode() not in store.path(KEY).read_bytes()


# Bad files


def rewrite(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def apply(whole: bytes) -> bytes:
        line, _, data = whole.partition(b"\n")
        return json.dumps(change(json.loads(line))).encode() + b"\n" + data

    return apply


BAD = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "a byte short": lambda whole: whole[:-1],
    "a byte long": lambda whole: whole + b"x",
    "flipped at the end": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
    "flipped in the middle": lambda whole: whole[:900] + bytes([whole[900] ^ 1]) + whole[901:],
    "flipped at the start": lambda whole: bytes([whole[0] ^ 1]) + whole[1:],
    "zeroes": lambda whole: bytes(len(whole)),
    "text": lambda whole: b"not an artifact\n",
    "another format": rewrite(lambda header: {**header, "format": 99}),
    "no format": rewrite(lambda header: {k: v for k, v in header.items() if k != "format"}),
    "another key": rewrite(lambda header: {**header, "key": "0" * 64}),
    "other factors": rewrite(lambda header: {**header, "factors": {"graph": "xyz"}}),
    "factors of a wrong type": rewrite(lambda header: {**header, "factors": "abc"}),
    "a list for a header": rewrite(lambda header: [header]),
}


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_set_aside_with_one_line_and_made_anew_once(
    store: FileStore, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path = store.path(KEY)
    path.write_bytes(damage(path.read_bytes()))
    fresh = FileStore(store.root)
    assert fresh.get(KEY) is None
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert (store.root / "quarantine" / path.name).exists()
    assert not path.exists()
    fresh.put(KEY, DATA, FACTORS)
    assert fresh.get(KEY) == FileStore(store.root).get(KEY) == DATA
    assert len(caplog.records) == 1


def test_a_file_of_another_key_is_not_taken_for_this_one(store: FileStore) -> None:
    other = artifact_key({"graph": "other"})
    store.path(KEY).rename(store.path(other))
    assert store.get(other) is None


def test_a_whole_artifact_that_its_reader_rejects_is_set_aside(
    store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.reject(KEY, "wrong torch")
    assert store.get(KEY) is None
    assert "wrong torch" in caplog.text


# Directories


def test_a_moved_directory_keeps_its_artifacts(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.root.rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert FileStore(Path("../moved")).get(KEY) == DATA


def test_a_directory_that_cannot_be_made_is_one_warning_and_memory_instead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = FileStore(tmp_path / "file" / "cache")
    with store.lock(KEY):
        assert store.get(KEY) is None
        store.put(KEY, DATA, FACTORS)
    assert store.get(KEY) == DATA
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(store.root) in record.getMessage()
    assert "cache_dir" in record.getMessage()


def test_a_read_only_directory_still_gives_what_it_has(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As root, permissions stop nobody: refuse writing the way a read-only file system does.
    open_descriptor, open_path = os.open, Path.open

    def refuse_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system")
        return open_descriptor(path, flags, *args, **kwargs)

    def refuse_path(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "r" not in mode:
            raise OSError(errno.EROFS, "Read-only file system")
        return open_path(self, mode, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse_descriptor)
    monkeypatch.setattr(Path, "open", refuse_path)
    other = artifact_key({"graph": "other"})
    fresh = FileStore(store.root)
    with fresh.lock(other):
        fresh.put(other, b"new", {"graph": "other"})
    assert (fresh.get(KEY), fresh.get(other)) == (DATA, b"new")
    assert len(caplog.records) == 1


def test_the_directory_is_the_users_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "engine"
    for config, root in (
        (CompilationConfig(), tmp_path / "xdg" / "engine" / "artifacts"),
        (CompilationConfig(cache_dir=tmp_path / "mine"), tmp_path / "mine" / "artifacts"),
    ):
        opened = open_store(EngineConfig(compilation_config=config))
        assert isinstance(opened, FileStore)
        assert opened.root == root


# Several at once


def test_a_key_is_made_by_one_thread_at_a_time(store: FileStore) -> None:
    inside, most = 0, 0
    guard = threading.Lock()

    def make() -> None:
        nonlocal inside, most
        own = FileStore(store.root)
        with own.lock("k"), own.lock("k"):
            with guard:
                inside += 1
                most = max(most, inside)
            time.sleep(0.01)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert (inside, most) == (0, 1)
    assert not list(store.root.glob("*.lock"))


def test_different_keys_do_not_wait_for_each_other(store: FileStore) -> None:
    other = FileStore(store.root)
    entered = threading.Event()

    def enter() -> None:
        with other.lock("b"):
            entered.set()

    with store.lock("a"):
        thread = threading.Thread(target=enter)
        thread.start()
        assert entered.wait(timeout=30)
    thread.join()


_KILLED = """
import os, sys, time
from pathlib import Path
from engine.artifacts import FileStore, artifact_key
os.fsync = lambda descriptor: (print("written", flush=True), time.sleep(120))
factors = {"graph": "abc", "torch": "2.13"}
store = FileStore(Path(sys.argv[1]))
with store.lock(artifact_key(factors)):
    store.put(artifact_key(factors), b"x" * 100000, factors)
"""


def test_a_process_killed_while_it_writes_leaves_neither_artifact_nor_lock_nor_litter(
    tmp_path: Path,
) -> None:
    root = tmp_path / "cache"
    writer = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    store = FileStore(root)
    assert list(root.glob("*.tmp"))
    assert store.get(KEY) is None
    with store.lock(KEY):
        store.put(KEY, DATA, FACTORS)
    assert store.get(KEY) == DATA
    assert [path.name for path in root.iterdir()] == [f"{KEY}.artifact"]


def test_memory_keeps_and_forgets() -> None:
    store = MemoryStore()
    with store.lock("k"):
        store.put("k", b"1", {})
    assert store.get("k") == b"1"
    store.reject("k", "bad")
    assert store.get("k") is None


def test_a_user_without_a_home_is_told_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    with pytest.raises(ConfigError, match="Set HOME, or name a folder with --cache-dir"):
        default_cache_dir()
