"""The file of one artifact: one line of JSON, then its bytes.

The line has a magic word, the format, the key, the size, the SHA-256, the factors of the key, and
what else is worth knowing. No path is in it, so files can be moved and copied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, TypeGuard

FORMAT = 1
"""Version of the file layout; files of another version are set aside."""
SUFFIX = ".artifact"
_MAGIC = "engine-artifact"
_LONGEST_LINE = 1 << 20


def artifact_key(factors: Mapping[str, str]) -> str:
    """Return the key of an artifact that was shaped by these factors, and by nothing else."""
    return hashlib.sha256(json.dumps(dict(factors), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Header:
    """What the first line says.

    Attributes:
        key: of the artifact, `artifact_key(factors)`.
        size: bytes of the artifact itself.
        sha256: of them.
        factors: what shaped it.
        about: what it is called (`unit`, `model`); no part of the key.
    """

    key: str
    size: int
    sha256: str
    factors: Mapping[str, str]
    about: Mapping[str, str]


def write_artifact(
    file: IO[bytes],
    key: str,
    data: bytes,
    factors: Mapping[str, str],
    about: Mapping[str, str],
) -> None:
    """Write one artifact."""
    header = {
        "magic": _MAGIC,
        "format": FORMAT,
        "key": key,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "factors": dict(factors),
        "about": dict(about),
    }
    file.write(json.dumps(header).encode() + b"\n")
    file.write(data)


def read_header(file: IO[bytes], key: str) -> Header:
    """Read the first line of the file that is kept under a key.

    Raises:
        ValueError: it isn't what was written under that key; says what is wrong.
    """
    try:
        header = json.loads(file.readline(_LONGEST_LINE))
    except ValueError:
        raise ValueError("its first line is no JSON") from None
    if not isinstance(header, dict) or header.get("magic") != _MAGIC:
        raise ValueError("it is no artifact")
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}, not {FORMAT}")
    factors, about = header.get("factors"), header.get("about", {})
    if not (_is_text(factors) and _is_text(about)):
        raise ValueError("its factors are no names with text")
    if header.get("key") != key or artifact_key(factors) != key:
        raise ValueError("it belongs to another key")
    size, digest = header.get("size"), header.get("sha256")
    if not isinstance(size, int) or not isinstance(digest, str):
        raise ValueError("its size or checksum is missing")
    return Header(key, size, digest, factors, about)


def read_artifact(file: IO[bytes], key: str) -> bytes:
    """Return the bytes of the artifact that is kept under a key.

    Raises:
        ValueError: the file isn't what was written under that key; says what is wrong.
    """
    header = read_header(file, key)
    data = file.read()
    if len(data) != header.size:
        raise ValueError(f"it has {len(data)} bytes of {header.size}")
    if hashlib.sha256(data).hexdigest() != header.sha256:
        raise ValueError("its checksum doesn't fit")
    return data


def _is_text(value: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
