"""What inductor made of one graph, as bytes that can be loaded elsewhere without a compiler.

Inductor keeps its results in a folder of its own (`TORCHINDUCTOR_CACHE_DIR`): the graph, the
Python that calls the kernels, the kernels. Each compilation gets a private folder, so that what
is in it is exactly what belongs to the graph, and that folder is what is kept.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

_NEEDLESS = frozenset({".lock", ".gch"})
_BINDINGS = "// Python bindings"
"""Begins what inductor appends to a C++ kernel's source."""


def pack(folder: Path) -> bytes:
    """Return the folder's files as one compressed archive; of kernels, those that are called."""
    callers = "".join(path.read_text() for path in folder.glob("*/*.py"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in _NEEDLESS and not _is_foreign(path, callers):
                archive.add(path, str(path.relative_to(folder)))
    return buffer.getvalue()


def _is_foreign(path: Path, callers: str) -> bool:
    """Say whether a file belongs to a kernel that was only offered for reuse."""
    source = path.with_suffix(".cpp")
    if path.suffix not in (".cpp", ".so") or not source.exists():
        return False
    return source.read_text().partition(_BINDINGS)[0].strip() not in callers


class PrivateFolder:
    """A temporary folder that lives as long as this object, and goes without a word."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="engine-inductor-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class KernelPool:
    """The C++ kernels that were built so far, offered to each new compilation.

    A model's last layer shares most kernels with the others, though its graph is another one.
    """

    def __init__(self) -> None:
        self._folder = PrivateFolder()

    def offer(self, folder: Path) -> None:
        """Put the known kernels into a folder."""
        shutil.copytree(self._folder.path, folder, copy_function=_link, dirs_exist_ok=True)

    def collect(self, folder: Path) -> None:
        """Remember the kernels of a folder."""
        for library in folder.glob("*/*.so"):
            for path in (library, library.with_suffix(".cpp")):
                known = self._folder.path / path.relative_to(folder)
                if path.exists() and not known.exists():
                    known.parent.mkdir(exist_ok=True)
                    _link(path, known)


def _link(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where that can't be done."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def unpack(data: bytes, folder: Path) -> None:
    """Write an archive's files into a folder.

    Raises:
        ValueError: it is no archive of `pack`.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"no archive of inductor's files: {error}") from error


@contextmanager
def prebuilt_kernels(folder: Path) -> Iterator[None]:
    """Let the C++ kernels in a folder be loaded as they are.

    Inductor finds a kernel by the command line that built it. To learn that it runs the compiler
    several times, even if no kernel is missing, and it can't without one. Here a kernel is found
    by its source instead; one that isn't found takes inductor's own way.
    """
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    built = {
        source.read_text(): library
        for source in folder.glob("*/*.cpp")
        if (library := source.with_suffix(".so")).exists()
    }
    compile_kernel = AsyncCompile.cpp_pybinding

    def load_kernel(
        self: AsyncCompile, argtypes: list[str], source_code: str
    ) -> Callable[..., Any]:
        for source, library in built.items():
            if source.startswith(source_code):
                module = CppPythonBindingsCodeCache._load_library(str(library), library.stem)  # noqa: SLF001 - it has no public loader
                return getattr(module, CppPythonBindingsCodeCache.entry_function)  # type: ignore[no-any-return]  # a function of the kernel's module
        return compile_kernel(self, argtypes, source_code)  # type: ignore[no-any-return]  # untyped

    with mock.patch.object(AsyncCompile, "cpp_pybinding", load_kernel):
        yield
