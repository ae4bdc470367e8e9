"""Where compiled artifacts are kept between runs, and under which key.

A key covers everything that shaped an artifact: what isn't declared irrelevant is in it. The
store itself never fails a run: what it can't read is a miss, what it can't write is kept in
memory, and a bad file is set aside with one log line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import local
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from engine.artifact_file import (
    SUFFIX,
    artifact_key,
    read_artifact,
    read_header,
    write_artifact,
)
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.config import EngineConfig

__all__ = [
    "ArtifactStore",
    "FileStore",
    "MemoryStore",
    "artifact_key",
    "artifacts_folder",
    "open_store",
]

logger = logging.getLogger(__name__)

_NOTHING: Mapping[str, str] = MappingProxyType({})


class ArtifactStore(Protocol):
    """Content-addressed bytes. A store never fails a run: a miss is always an answer."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None."""
        ...

    def put(
        self,
        key: str,
        data: bytes,
        factors: Mapping[str, str],
        about: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Keep bytes under a key; visible to others whole or not at all.

        Args:
            key: `artifact_key(factors)`.
            data: the artifact.
            factors: what shaped it; kept beside it, so that two artifacts can be compared.
            about: what it is called (`unit`, `model`), for people who look at the store.
        """
        ...

    def stored(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the key and the factors of everything that is kept, in no order."""
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
        self._factors: dict[str, Mapping[str, str]] = {}

    def __str__(self) -> str:
        return "this process's memory"

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None."""
        return self._items.get(key)

    def put(
        self,
        key: str,
        data: bytes,
        factors: Mapping[str, str],
        about: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Keep bytes under a key."""
        del about
        self._items[key], self._factors[key] = data, factors

    def stored(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the key and the factors of everything that is kept."""
        yield from self._factors.items()

    def reject(self, key: str, reason: str) -> None:
        """Forget an artifact."""
        del reason
        self._items.pop(key, None)
        self._factors.pop(key, None)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Do nothing: nobody else sees this store."""
        del key
        yield


class FileStore:
    """Keeps one file per artifact in a directory that processes may share.

    `engine.artifact_file` says what is in a file; no path is, so the directory can be moved.
    Writers rename a finished file into place, under a lock per key.

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

    def __str__(self) -> str:
        return str(self.root)

    def path(self, key: str) -> Path:
        """Return the file of a key."""
        return self.root / f"{key}{SUFFIX}"

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

    def put(
        self,
        key: str,
        data: bytes,
        factors: Mapping[str, str],
        about: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Keep bytes under a key, or in memory when the directory can't be written."""
        unfinished = self.root / f"{key}.{os.getpid()}.tmp"
        try:
            with unfinished.open("wb") as file:
                write_artifact(file, key, data, factors, about)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.path(key))
        except OSError as error:
            self._tell(error)
            self._overflow.put(key, data, factors, about)
            with suppress(OSError):
                unfinished.unlink()

    def stored(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the key and the factors of everything that is kept and readable."""
        yield from self._overflow.stored()
        for path in self.root.glob(f"*{SUFFIX}"):
            with suppress(OSError, ValueError), path.open("rb") as file:
                yield path.stem, read_header(file, path.stem).factors

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
        logger.warning("set aside the bad artifact %s (%s); it must be made anew", path, reason)

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
    with path.open("rb") as file:
        return read_artifact(file, key)


def default_cache_dir() -> Path:
    """Return where artifacts are kept when the user names no directory."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(Path(base)) / "engine"


def artifacts_folder(cache_dir: Path | None) -> Path:
    """Return the folder of the artifacts in a cache directory, or in the default one."""
    return _expanded(cache_dir or default_cache_dir()) / "artifacts"


def _expanded(path: Path) -> Path:
    """Return a path with `~` written out.

    Raises:
        ConfigError: nobody knows where the user's home is.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"compilation_config.cache_dir={str(path)!r}: {error} Set HOME, or name a folder with "
            "--cache-dir"
        ) from error


def open_store(config: EngineConfig) -> ArtifactStore:
    """Open the artifact store that the configuration names, or the default one."""
    return FileStore(artifacts_folder(config.compilation_config.cache_dir))
