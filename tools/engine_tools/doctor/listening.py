"""Check of the address that the server would listen on."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from engine_tools.doctor.finding import Finding, Reporter
from engine_tools.doctor.subject import Subject


def check_address(subject: Subject) -> Iterator[Finding]:
    """Bind the address as the server does, and give it back at once."""
    say, address = Reporter("address"), subject.address
    if address.uds is not None:
        yield _unix(say, address.uds)
        return
    host, port = address.host, address.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen()
    except (OSError, UnicodeError) as error:
        yield _refused(say, error, host, port)
    else:
        yield say.ok(f"{host}:{port} is free" if port else f"{host}, any free port")


def _refused(say: Reporter, error: OSError | UnicodeError, host: str, port: int) -> Finding:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return say.error(
                f"port {port} is in use on {host}",
                "stop what listens there, or pass another --port to `engine serve`",
            )
        case errno.EACCES:
            return say.error(f"port {port} isn't allowed", "pass a --port above 1023")
    reason = getattr(error, "strerror", None) or error
    return say.error(f"host {host!r}: {reason}", "pass another --host")


def _unix(say: Reporter, path: Path) -> Finding:
    remedy = "pass another --uds"
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                return say.ok(f"{path} was left behind by a server that is gone")
        return say.error(f"{path}: a server listens there", remedy)
    if path.exists():
        return say.error(f"{path}: is a file, no socket", remedy)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return say.error(f"{path.parent}: is no folder that can be written", remedy)
    return say.ok(f"{path} is free")
