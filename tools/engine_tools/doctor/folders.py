"""Checks of the folders that a start writes into: home, cache, temporary files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path
from shutil import disk_usage

from engine import ConfigError
from engine.artifacts import artifacts_folder
from engine_tools.doctor.finding import Finding, Reporter
from engine_tools.doctor.sizes import show
from engine_tools.doctor.subject import Subject

LOW_DISK = 2**30
"""Free bytes under which a folder is warned about; a round number, not a measured need."""

_NOEXEC: int = getattr(os, "ST_NOEXEC", 0)  # Linux has it


def check_user(subject: Subject) -> Iterator[Finding]:
    """See whether this user has a name and a home, which containers often forget."""
    say = Reporter("user")
    try:
        name = getuser()
    except (KeyError, OSError, ImportError):
        name = ""
        yield say.warning(
            f"user {os.getuid()} has no name: it isn't in /etc/passwd and USER isn't set",
            "set USER to any name; compilers put it into the names of their folders",
        )
    try:
        home = Path.home()
    except RuntimeError:
        home = None
    if home is None:
        yield _without_home(say, subject)
    elif name:
        yield say.ok(f"{name}, home {home}")


def _without_home(say: Reporter, subject: Subject) -> Finding:
    chosen = subject.settings.config.compilation_config.cache_dir
    if chosen is None and not os.environ.get("XDG_CACHE_HOME"):
        return say.error(
            "this user has no home, and the cache directory lies there by default",
            "set HOME, or pass --cache-dir",
        )
    return say.warning("this user has no home, where Triton keeps its kernels", "set HOME")


def check_cache(subject: Subject) -> Iterator[Finding]:
    """See whether compiled artifacts can be kept; without that each start compiles again."""
    say = Reporter("cache")
    try:
        folder = artifacts_folder(subject.settings.config.compilation_config.cache_dir)
    except ConfigError as error:
        yield say.error(f"the cache directory can't be found: {error}", "set HOME or --cache-dir")
        return
    if subject.settings.config.compilation_config.require_cache:
        yield _readable(say, folder)
        return
    if problem := _unwritable(folder):
        yield say.warning(
            f"{folder}: {problem}; each start would compile everything again",
            "pass a --cache-dir that this user can write to",
        )
        return
    yield from _room(say, folder, "pass a --cache-dir elsewhere, or run `engine cache clear`")


def _readable(say: Reporter, folder: Path) -> Finding:
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        return say.error(f"--require-cache, but {folder}: {error.strerror}", "pass --cache-dir")
    if empty:
        return say.error(
            f"--require-cache, but {folder} holds nothing", "import a bundle: `engine cache import`"
        )
    return say.ok(f"{folder} can be read")


def check_temporary(subject: Subject) -> Iterator[Finding]:
    """See whether temporary files can be written, and code in them run."""
    say = Reporter("temporary files")
    # Not tempfile.gettempdir(), which remembers its answer, and takes the next folder silently.
    named = next((os.environ[n] for n in ("TMPDIR", "TEMP", "TMP") if os.environ.get(n)), None)
    if named is not None and (problem := _unwritable(Path(named))):
        yield say.warning(f"{named}: {problem}; another folder is taken", "correct TMPDIR")
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        yield say.error(str(error.strerror or error), "set TMPDIR to a folder that can be written")
        return
    if subject.may_compile and os.statvfs(folder).f_flag & _NOEXEC:
        how = say.error if subject.must_compile else say.warning
        yield how(
            f"{folder} is mounted noexec: code that is compiled there can't be loaded",
            "set TMPDIR to a folder elsewhere",
        )
        return
    yield from _room(say, folder, "make room, or set TMPDIR to a folder elsewhere")


def _room(say: Reporter, folder: Path, remedy: str) -> Iterator[Finding]:
    free = disk_usage(_nearest(folder)).free
    if free < LOW_DISK:
        yield say.warning(f"{folder}: only {show(free)} of disk are free", remedy)
    else:
        yield say.ok(f"{folder} can be written, {show(free)} free")


def _unwritable(folder: Path) -> str:
    """Say why nothing can be written into a folder that may not exist yet; empty if it can.

    A file is really made, since permissions don't tell: root passes them, a read-only disk not.
    """
    at = _nearest(folder)
    if not at.is_dir():
        return f"{at} is a file"
    try:
        with tempfile.TemporaryFile(dir=at):
            return ""
    except OSError as error:
        where = "" if at == folder else f"{at}: "
        return f"{where}{error.strerror}"


def _nearest(path: Path) -> Path:
    """Return the path itself or the nearest of its parents that exists."""
    path = path.absolute()
    return next((p for p in (path, *path.parents) if os.path.lexists(p)), path)
