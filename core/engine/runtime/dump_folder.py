"""Writes a dump as a folder of readable files with an index."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self

from engine.dump import GraphDump
from engine.errors import ConfigError

logger = logging.getLogger(__name__)

_README = """\
What one start of the engine made, for reading: nothing of it is ever read back.
The same as data: index.json. See docs/debug-dump.md.
"""


def open_dump(folder: Path | None, name: str) -> GraphDump:
    """Make a new folder for one start; a dump that drops everything when no folder is named.

    Args:
        folder: `debug_dump` of the settings; made if need be.
        name: a part of the new folder's name, beside the time.

    Raises:
        ConfigError: the folder can't be made or written.
    """
    if folder is None:
        return GraphDump()
    started = datetime.now().astimezone()
    stem = _safe(f"{started:%Y%m%d-%H%M%S}-{name}")
    try:
        root = _make(folder.expanduser(), stem)
        index = _Index(root, started)
        index.write()
    except OSError as error:
        raise ConfigError(
            f"debug_dump={str(folder)!r}: can't be written ({error.strerror}); name a directory "
            "that can, or leave --debug-dump out"
        ) from error
    logger.info("what this start makes is written to %s", root)
    return FolderDump(index)


def _make(folder: Path, stem: str) -> Path:
    """Make a folder that no other start has."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        root = folder / (stem if number == 1 else f"{stem}-{number}")
        try:
            root.mkdir()
        except FileExistsError:
            number += 1
        else:
            return root


def _safe(name: str) -> str:
    """Return a name that is a readable path below the folder, whatever a plugin calls things."""
    parts = [re.sub(r"[^\w.+-]+", "-", part).strip("-.") for part in name.split("/")]
    return "/".join(part for part in parts if part) or "unnamed"


class _Index:
    """What lies in the folder; written again with each file, so that a failed start has one."""

    def __init__(self, root: Path, started: datetime) -> None:
        self.root = root
        self._started = started
        self._files: dict[str, str] = {}
        self._missing: dict[str, str] = {}
        self._full = False

    def add(self, name: str, text: str, about: str) -> None:
        def write() -> None:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            self._files[name] = about
            self.write()

        self._try(write)

    def add_missing(self, name: str, reason: str) -> None:
        self._missing[name] = reason
        self._try(self.write)

    def _try(self, write: Callable[[], None]) -> None:
        if self._full:
            return
        try:
            write()
        except OSError as error:
            self._full = True
            logger.warning("the dump in %s ends here: %s", self.root, error.strerror)

    def write(self) -> None:
        content = {
            "started": self._started.isoformat(timespec="seconds"),
            "files": [{"file": name, "about": about} for name, about in self._files.items()],
            "missing": [{"what": name, "why": why} for name, why in self._missing.items()],
        }
        (self.root / "index.json").write_text(json.dumps(content, indent=1) + "\n")
        (self.root / "README.txt").write_text("".join(self._lines()), encoding="utf-8")

    def _lines(self) -> list[str]:
        width = max(map(len, (*self._files, *self._missing, "")))
        lines = [_README, "\n"]
        lines += [f"{f'{name:{width}}  {about}'.rstrip()}\n" for name, about in self._files.items()]
        if self._missing:
            lines.append("\nNot here:\n")
            lines += [f"{name:{width}}  {why}\n" for name, why in self._missing.items()]
        return lines


class FolderDump(GraphDump):
    """Writes into a folder, or into one inside it; `open_dump` makes it.

    A disk that is full ends the dump with one line in the log, not the start.
    """

    active = True

    def __init__(self, index: _Index, prefix: str = "") -> None:
        self._index, self._prefix = index, prefix

    @property
    def folder(self) -> Path:
        """Where it writes."""
        return self._index.root / self._prefix

    def inside(self, folder: str) -> Self:
        """Return a dump that writes into a folder of this one."""
        return type(self)(self._index, f"{self._prefix}{_safe(folder)}/")

    def text(self, name: str, text: str, about: str = "") -> None:
        """Write a file and the index."""
        self._index.add(f"{self._prefix}{_safe(name)}", text, about)

    def missing(self, name: str, reason: str) -> None:
        """Note in the index why something isn't there."""
        self._index.add_missing(f"{self._prefix}{_safe(name)}", reason)
