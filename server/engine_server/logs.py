"""Where log lines go."""

from __future__ import annotations

import logging

from engine_server.config import ServerConfig

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PROBES = ("/health", "/ready", "/metrics")


def set_up_logging(config: ServerConfig) -> None:
    """Send the lines of the engine and the server to standard error.

    An application that has set up logging of its own keeps it.
    """
    level = config.log_level.upper()
    logging.basicConfig(format=_FORMAT)
    for name in ("engine", "engine_server", "uvicorn.access"):
        logging.getLogger(name).setLevel(level)
    # What uvicorn says of its own start and end is told better by the lifecycle.
    calm = max(logging.getLevelNamesMapping()[level], logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(level if level == "DEBUG" else calm)
    access = logging.getLogger("uvicorn.access")
    if not any(isinstance(f, _NoProbes) for f in access.filters):
        access.addFilter(_NoProbes())


class _NoProbes(logging.Filter):
    """Drops the line of a health check that succeeded: one comes every few seconds."""

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (_, _, str(path), _, 200):
                return path.partition("?")[0] not in _PROBES
        return True
