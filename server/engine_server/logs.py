"""Where log lines go, and what they look like."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from engine_server.config import ServerConfig

ACCESS = logging.getLogger("engine_server.access")
"""One line for each answer; the record's `access` has its parts."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PROBES = ("/health", "/ready", "/metrics")


def set_up_logging(config: ServerConfig) -> None:
    """Send the lines of the engine and the server to standard error.

    An application that has set up logging of its own keeps it.
    """
    level = config.log_level.upper()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if config.log_format == "json" else logging.Formatter(_FORMAT))
    logging.basicConfig(handlers=[handler])
    for name in ("engine", "engine_server"):
        logging.getLogger(name).setLevel(level)
    # What uvicorn says of its own start and end is told better by the lifecycle.
    calm = max(logging.getLevelNamesMapping()[level], logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(level if level == "DEBUG" else calm)
    ACCESS.disabled = not config.access_log


def log_access(
    method: str, path: str, status: int, *, client: str, seconds: float, request_id: str
) -> None:
    """Tell of one answer; a health check that succeeded isn't worth a line every few seconds."""
    if not ACCESS.isEnabledFor(logging.INFO) or (status == 200 and path in _PROBES):
        return
    parts = {
        "client": client,
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 6),
        "request_id": request_id,
    }
    ACCESS.info(
        '%s "%s %s" %d in %.3f s, request %s',
        client,
        method,
        path,
        status,
        seconds,
        request_id,
        extra={"access": parts},
    )


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "access", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
