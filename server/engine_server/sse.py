"""Server-sent events, made cheap: what is the same in every chunk is rendered once."""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
_LINE_ENDS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))
"""JSON leaves these as they are, but some clients split lines at them."""


def encode_text(text: str) -> bytes:
    """Return text as a JSON string on one line."""
    data = _encode(text)
    if not text.isascii():
        for char, escape in _LINE_ENDS:
            if char in text:
                data = data.replace(char.encode(), escape)
    return data


def encode(value: object) -> bytes:
    """Return a value as JSON on one line."""
    data = _encode(value)
    if not data.isascii():
        for char, escape in _LINE_ENDS:
            data = data.replace(char.encode(), escape)
    return data


def event(payload: bytes) -> bytes:
    """Return one event."""
    return b"data: " + payload + b"\n\n"
