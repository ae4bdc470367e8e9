"""Hashes of source code, for the keys of what it made.

A plugin's version is raised by hand, and sometimes isn't. What a graph can't show, such as the
body of an operator that a compiler looks into, is seen here.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_SOURCES = frozenset({".py", ".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"})
_NEVER = frozenset({"tests", "__pycache__"})


@cache
def package_code(module: str, *, without: tuple[str, ...] = ()) -> str:
    """Return a hash of the package that a module lies in; of its file, if that is all there is.

    Args:
        module: its full name; it must have been imported.
        without: folders of the package that are left out.

    Returns:
        16 hexadecimal digits; empty when there is no source (code typed at a prompt).
    """
    package = sys.modules.get(sys.modules[module].__package__ or "")
    file = getattr(package, "__file__", None)
    if file is None:
        own = getattr(sys.modules[module], "__file__", None)
        return _hash([("", Path(own))]) if own else ""
    root = Path(file).parent
    skipped = {*without, *_NEVER}
    return _hash(
        (str(path.relative_to(root)), path)
        for path in sorted(root.rglob("*"))
        if path.suffix in _SOURCES and not skipped & set(path.relative_to(root).parts)
    )


def model_code(model: nn.Module) -> str:
    """Return a hash of the files that define a model's modules, PyTorch's own left out."""
    classes = {type(module) for module in model.modules()}
    files: dict[str, Path] = {}
    for one in classes:
        if one.__module__.partition(".")[0] == "torch":
            continue
        try:
            files[one.__module__] = Path(inspect.getfile(one))
        except (OSError, TypeError):
            continue  # typed at a prompt: what it computes is seen in the graph
    return _hash(sorted(files.items()))


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
