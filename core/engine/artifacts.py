"""Where compiled artifacts are kept between runs, as strategies and backends see it."""

from __future__ import annotations

from typing import Protocol


class ArtifactStore(Protocol):
    """Content-addressed bytes. A store never fails a run: a miss is always an answer."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes under a key; visible to others whole or not at all."""
        ...


class MemoryStore:
    """Keeps artifacts for the life of the process; used where no directory is wanted."""

    def __init__(self) -> None:
        self._items: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None."""
        return self._items.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes under a key."""
        self._items[key] = data
