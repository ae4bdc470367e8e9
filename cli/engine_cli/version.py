"""`engine --version`: versions from metadata, so that nothing has to be imported."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

DISTRIBUTION = "modular-engine"
_STANDS_ON = ("torch", "triton", "transformers")


def version_lines() -> Iterator[str]:
    """Yield one line for engine, Python and each library that results depend on."""
    yield f"engine {metadata.version(DISTRIBUTION)}"
    yield f"python {platform.python_version()}"
    for name in _STANDS_ON:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name} not installed"
