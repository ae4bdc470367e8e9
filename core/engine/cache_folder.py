"""Looking at, clearing, packing and unpacking the artifacts of a cache directory.

For people and tools; an engine itself only needs `engine.artifacts`. Everything here is safe while
engines run: what is removed under them is compiled again.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from time import time

from engine.artifact_file import SUFFIX, read_artifact, read_header
from engine.artifacts import FileStore, artifacts_folder
from engine.errors import ConfigError

SHORT = 12
"""Digits of a key that are shown; any unambiguous beginning is understood."""
_LAST = "complete"
"""The name of an archive's last member: without it the archive was cut off."""
_COMPRESSION = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}


@dataclass(frozen=True)
class Entry:
    """One artifact.

    Attributes:
        key: of the artifact; also the stem of its file's name.
        path: its file.
        size: bytes of the file.
        made: seconds since the epoch.
        factors: what shaped it.
        about: what it is called.
        problem: why the file is no artifact; empty when its first line is as it should be.
    """

    key: str
    path: Path
    size: int
    made: float
    factors: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return max(0.0, time() - self.made)


@dataclass
class Imported:
    """What became of an archive's members.

    Attributes:
        added: keys that are new in the directory.
        kept: keys that were there already and stay as they were.
        refused: names of members that are no good artifacts, with the reason.
    """

    added: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class CacheFolder:
    """The artifacts of one cache directory.

    Args:
        cache_dir: as in `compilation_config.cache_dir`; the default one when None.
    """

    def __init__(self, cache_dir: Path | None = None) -> None:
        self.root = artifacts_folder(cache_dir)

    def entries(self) -> list[Entry]:
        """Return every artifact, the newest first."""
        return self._read(self.root)

    def set_aside(self) -> list[Entry]:
        """Return the bad artifacts that were set aside when they were met."""
        return self._read(self.root / "quarantine")

    def _read(self, folder: Path) -> list[Entry]:
        found = []
        for path in folder.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):  # removed meanwhile
                found.append(_entry(path))
        return sorted(found, key=lambda entry: (-entry.made, entry.key))

    def find(self, prefix: str) -> Entry:
        """Return the artifact whose key begins with a prefix.

        Raises:
            ConfigError: none does, or several do; names them.
        """
        entries, prefix = self.entries(), prefix.lower()
        found = [entry for entry in entries if prefix and entry.key.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if found:
            keys = ", ".join(sorted(entry.key[: max(SHORT, len(prefix) + 4)] for entry in found))
            raise ConfigError(f"{prefix!r} is ambiguous in {self.root}: {keys}; write more digits")
        hint = f"it holds {len(entries)}, see `engine cache list`" if entries else "it holds none"
        raise ConfigError(f"no artifact in {self.root} has a key beginning with {prefix!r}; {hint}")

    def remove(self, entries: Iterable[Entry]) -> int:
        """Remove artifacts and return the bytes that this frees.

        Raises:
            ConfigError: a file can't be removed; names it.
        """
        freed = 0
        for entry in entries:
            try:
                entry.path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ConfigError(f"{entry.path}: can't be removed: {error.strerror}") from error
            freed += entry.size
        return freed

    def export(self, file: Path, entries: Sequence[Entry]) -> list[Entry]:
        """Write artifacts into one tar archive, after checking their checksums.

        Args:
            file: what to write; compressed when it ends in .gz, .tgz, .xz or .bz2.
            entries: what to pack.

        Returns:
            Those that were left out since they are damaged, each with its problem.

        Raises:
            ConfigError: the archive can't be written.
        """
        bad: list[Entry] = []
        unfinished = file.with_name(f"{file.name}.unfinished")
        try:
            with tarfile.open(unfinished, _COMPRESSION.get(file.suffix, "w")) as archive:  # type: ignore[call-overload]  # the mode is a Literal there
                for entry in entries:
                    try:
                        content = entry.path.read_bytes()
                        read_artifact(BytesIO(content), entry.key)
                    except FileNotFoundError:
                        continue
                    except ValueError as error:
                        bad.append(Entry(entry.key, entry.path, 0, 0.0, problem=str(error)))
                        continue
                    member = tarfile.TarInfo(f"artifacts/{entry.path.name}")
                    member.size, member.mtime = len(content), int(entry.made)
                    archive.addfile(member, BytesIO(content))
                archive.addfile(tarfile.TarInfo(_LAST))
            unfinished.replace(file)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise ConfigError(f"{file}: can't be written: {error.strerror}") from error
        return bad

    def import_archive(self, file: Path) -> Imported:
        """Take the artifacts of an archive into the directory.

        What is there and good stays. Each new one is checked against its checksum first. Code is
        loaded from artifacts: only take an archive from somebody who may run code here.

        Raises:
            ConfigError: the file is no archive, or the directory can't be written.
        """
        store, result = FileStore(self.root), Imported()
        try:
            with tarfile.open(file) as archive:
                whole = False
                for name, content in _members(archive):
                    whole = name == _LAST
                    if not whole:
                        _take(store, name, content, result)
                if not whole:
                    raise tarfile.ReadError("its end is missing")
        except (tarfile.TarError, EOFError, zlib.error, LZMAError) as error:
            raise ConfigError(
                f"{file}: is no whole archive of artifacts ({error}); {len(result.added)} were "
                "taken from it"
            ) from error
        except OSError as error:
            raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from error
        return result


def _entry(path: Path) -> Entry:
    stat = path.stat()
    try:
        with path.open("rb") as file:
            header = read_header(file, path.stem)
            whole = header.size + file.tell()
    except ValueError as error:
        return Entry(path.stem, path, stat.st_size, stat.st_mtime, problem=str(error))
    except OSError as error:
        problem = f"it can't be read: {error.strerror}"
        return Entry(path.stem, path, stat.st_size, stat.st_mtime, problem=problem)
    problem = "" if whole == stat.st_size else f"it has {stat.st_size} bytes of {whole}"
    return Entry(
        path.stem, path, stat.st_size, stat.st_mtime, header.factors, header.about, problem
    )


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes | None]]:
    """Yield the name and the content of each member; no content for what is no file."""
    for member in archive:
        if member.isdir():
            continue
        reader = archive.extractfile(member) if member.isfile() else None
        yield member.name, reader.read() if reader is not None else None


def _take(store: FileStore, name: str, content: bytes | None, result: Imported) -> None:
    path = PurePosixPath(name)
    if content is None or path.suffix != SUFFIX:
        result.refused[name] = "it is no artifact"
        return
    key = path.stem
    try:
        data = read_artifact(file := BytesIO(content), key)
        file.seek(0)
        header = read_header(file, key)
    except ValueError as error:
        result.refused[name] = str(error)
        return
    with store.lock(key):
        if store.get(key) is not None:
            result.kept.append(key)
            return
        store.put(key, data, header.factors, header.about)
    if not store.path(key).exists():
        raise ConfigError(f"{store.root}: can't be written; nothing was imported into it")
    result.added.append(key)
