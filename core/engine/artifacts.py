"""Where compiled artifacts are kept between runs, and under which key.

A key covers everything that shaped an artifact: what isn't declared irrelevant is in it. The
store itself never fails a run: what it can't read is a miss, what it can't write is kept in
memory, and a bad file is set aside with one log line.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.config import EngineConfig

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the file layout; files of another version are set aside."""
_MAGIC = "engine-artifact"


def artifact_key(factors: Mapping[str, str]) -> str:
    """Return the key of an artifact that was shaped by these factors, and by nothing else."""
    return hashlib.sha256(json.dumps(dict(factors), sort_keys=True).encode()).hexdigest()


class ArtifactStore(Protocol):
    """Content-addressed bytes. A store never fails a run: a miss is always an answer."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None."""
        ...

    def put(self, key: str, data: bytes, factors: Mapping[str, str]) -> None:
        """Keep bytes under a key; visible to others whole or not at all.

        Args:
            key: `artifact_key(factors)`.
            data: the artifact.
            factors: what shaped it; kept beside it, so that two artifacts can be compared.
        """
        ...

    def reject(self, key: str, reason: str) -> None:
        """Set an artifact aside that was whole but couldn't be used."""
        ...

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Hold everyone else off while the artifact of a key is made; reentrant in a thread."""
        ...


class MemoryStore:
    """Keeps artifacts for the life of the process; used where no directory is wanted."""

    def __init__(self) -> None:
        self._items: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None."""
        return self._items.get(key)

    def put(self, key: str, data: bytes, factors: Mapping[str, str]) -> None:
        """Keep bytes under a key."""
        del factors
        self._items[key] = data

    def reject(self, key: str, reason: str) -> None:
        """Forget an artifact."""
        del reason
        self._items.pop(key, None)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Do nothing: nobody else sees this store."""
        del key
        yield


class FileStore:
    """Keeps one file per artifact in a directory that processes may share.

    A file is one line of JSON (format, key, size, SHA-256, factors) and the artifact's bytes. No
    path is in it, so the directory can be moved. Writers rename a finished file into place, under
    a lock per key.

    Args:
        root: the directory; made if need be.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._held = local()
        self._overflow = MemoryStore()
        self._told = False
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._tell(error)

    def path(self, key: str) -> Path:
        """Return the file of a key."""
        return self.root / f"{key}.artifact"

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key; a file that isn't what was written is set aside."""
        path = self.path(key)
        try:
            return _read(path, key)
        except FileNotFoundError:
            return self._overflow.get(key)
        except OSError as error:
            self._tell(error)
            return self._overflow.get(key)
        except ValueError:
            pass
        # Somebody may have rebuilt it meanwhile: look again while nobody can.
        with self.lock(key):
            try:
                return _read(path, key)
            except OSError:
                return None
            except ValueError as error:
                self.reject(key, str(error))
                return None

    def put(self, key: str, data: bytes, factors: Mapping[str, str]) -> None:
        """Keep bytes under a key, or in memory when the directory can't be written."""
        header = {
            "magic": _MAGIC,
            "format": FORMAT,
            "key": key,
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "factors": dict(factors),
        }
        unfinished = self.root / f"{key}.{os.getpid()}.tmp"
        try:
            with unfinished.open("wb") as file:
                file.write(json.dumps(header).encode() + b"\n")
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.path(key))
        except OSError as error:
            self._tell(error)
            self._overflow.put(key, data, factors)
            with suppress(OSError):
                unfinished.unlink()

    def reject(self, key: str, reason: str) -> None:
        """Move an artifact out of the way, for whoever wants to look at it."""
        self._overflow.reject(key, reason)
        path = self.path(key)
        aside = self.root / "quarantine" / path.name
        try:
            aside.parent.mkdir(exist_ok=True)
            path.replace(aside)
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell(error)
        logger.warning("set aside the bad artifact %s (%s); it is made anew", path, reason)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold other processes and threads off a key; what a dead writer left is removed."""
        held: set[str] = self._held.__dict__.setdefault("keys", set())
        if key in held:
            yield
            return
        path = self.root / f"{key}.lock"
        descriptor = self._acquire(path)
        held.add(key)
        try:
            if descriptor is not None:
                for litter in self.root.glob(f"{key}.*.tmp"):
                    litter.unlink(missing_ok=True)
            yield
        finally:
            held.discard(key)
            if descriptor is not None:
                path.unlink(missing_ok=True)
                os.close(descriptor)

    def _acquire(self, path: Path) -> int | None:
        """Return the descriptor of the locked file; None where nothing can be locked."""
        try:
            import fcntl
        except ImportError:
            return None
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                self._tell(error)
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that makes %s", path.stem)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                # No locks on this file system: the same may be made twice, and one of them stays.
                os.close(descriptor)
                return None
            # The holder before us removed the file: a lock on it excludes nobody any more.
            with suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == path.stat().st_ino:
                    return descriptor
            os.close(descriptor)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "compiled artifacts can't be kept in %s (%s: %s); they are made anew at each "
                "start. Name a writable directory as compilation_config.cache_dir",
                self.root,
                type(error).__name__,
                error.strerror or error,
            )


def _read(path: Path, key: str) -> bytes:
    """Return an artifact's bytes.

    Raises:
        OSError: the file can't be read.
        ValueError: it isn't what was written under that key.
    """
    with path.open("rb") as file:
        line = file.readline()
        data = file.read()
    try:
        header = json.loads(line)
    except ValueError:
        raise ValueError("its first line is no JSON") from None
    if not isinstance(header, dict) or header.get("magic") != _MAGIC:
        raise ValueError("it is no artifact")
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}, not {FORMAT}")
    if header.get("key") != key or artifact_key(header.get("factors", {})) != key:
        raise ValueError("it belongs to another key")
    if header.get("size") != len(data):
        raise ValueError(f"it has {len(data)} bytes of {header.get('size')}")
    if header.get("sha256") != hashlib.sha256(data).hexdigest():
        raise ValueError("its checksum doesn't fit")
    return data


def default_cache_dir() -> Path:
    """Return where artifacts are kept when the user names no directory."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "engine"


def open_store(config: EngineConfig) -> ArtifactStore:
    """Open the artifact store that the configuration names, or the default one."""
    chosen = config.compilation_config.cache_dir
    return FileStore((chosen or default_cache_dir()).expanduser() / "artifacts")
