"""Writes bytes for people."""

from __future__ import annotations


def show(count: float) -> str:
    """Return a number of bytes with a binary unit (1536 is `1.5 KiB`)."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
