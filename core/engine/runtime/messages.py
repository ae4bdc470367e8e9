"""What the API process and the engine process say to each other, as msgpack over ZeroMQ."""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.structs

from engine.request import EngineOutput, EngineRequest, EngineStats


class Add(msgspec.Struct, frozen=True, tag=True):
    """Start these sequences."""

    requests: list[EngineRequest]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End these sequences without another word about them."""

    request_ids: list[str]


class AskStats(msgspec.Struct, frozen=True, tag=True):
    """Send the counters."""

    ticket: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop at once and leave."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A sequence wasn't taken: the queue is full or it can never fit."""

    request_id: str
    full: bool
    message: str
    param: str | None = None


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """What one step made."""

    outputs: list[EngineOutput]


class Stats(msgspec.Struct, frozen=True, tag=True):
    """The counters that were asked for."""

    ticket: int
    stats: EngineStats


ToEngine = Add | Abort | AskStats | Shutdown
FromEngine = Outputs | Refused | Stats

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Any) -> bytes:
    """Serialise a message."""
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Read a message that the engine process receives."""
    return _to_engine.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Read a message that the API process receives."""
    return _from_engine.decode(data)
