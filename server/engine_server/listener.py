"""Binds the server's address before anything slow is done."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from engine.errors import ConfigError
from engine_server.config import ServerConfig

_BACKLOG = 2048


def listen(config: ServerConfig) -> socket.socket:
    """Return a listening socket.

    Connections made from now on wait until the server answers them.

    Raises:
        ConfigError: the address can't be had; names it and the flag.
    """
    if config.uds is not None:
        return _listen_unix(config.uds)
    host, port = config.host, config.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"host={host!r}: {reason}; pass another --host") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_reason(error, host, port)) from None
    listener.set_inheritable(False)
    return listener


def url(listener: socket.socket, config: ServerConfig) -> str:
    """Return where clients find the server."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def close(listener: socket.socket, config: ServerConfig) -> None:
    """Give the address back."""
    listener.close()
    if config.uds is not None:
        config.uds.unlink(missing_ok=True)


def _reason(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port={port}: already in use on {host}; stop what listens there, or pass "
                "another --port (0 takes a free one)"
            )
        case errno.EACCES:
            return f"port={port}: not allowed to listen there; pass a --port above 1023"
        case errno.EADDRNOTAVAIL:
            return f"host={host!r}: no address of this machine; pass another --host"
    return f"host={host!r}, port={port}: {error.strerror}"


def _listen_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"uds={path}: already in use; pass another --uds") from None
        raise ConfigError(f"uds={path}: {error.strerror or error}; pass another --uds") from None
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that an earlier server left behind and nobody listens on."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
