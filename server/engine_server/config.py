"""What can be set about the HTTP server. Importing this loads no web framework and no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.config import HumanInt, validation_message
from engine.errors import ConfigError


class ServerConfig(BaseModel):
    """Where the server listens, who may ask it, and how it ends."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every network of the machine."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes any free one and prints it."""
    uds: Path | None = None
    """Unix socket to listen on, instead of a host and port."""
    served_model_name: tuple[str, ...] = ()
    """Names that clients may use for the model; the model's own by default."""
    api_key: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Keys of which a client must send one; anyone may ask when there are none."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins whose pages may call the server (CORS); * for any."""
    tool_call_parser: str = "auto"
    """Format in which the model writes calls of tools; known by its chat template by default."""
    chat_template: Path | None = None
    """File with a Jinja chat template, instead of the model's own."""
    trust_request_chat_template: bool = False
    """Let clients send chat templates of their own: these run in a sandbox, but can run long."""
    root_path: str = ""
    """Path under which a proxy publishes the server, like /llm."""
    ssl_certfile: Path | None = None
    """Certificate chain (PEM) to serve HTTPS with."""
    ssl_keyfile: Path | None = None
    """Private key of the certificate (PEM), if it isn't in the same file."""
    ssl_keyfile_password: Annotated[str | None, Field(repr=False)] = None
    """Password of the private key."""
    ssl_ca_certs: Path | None = None
    """Authorities (PEM) of which a client must show a certificate; none needed by default."""
    request_timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a request may take from its arrival to its last token; no limit by default."""
    max_body_size: Annotated[HumanInt, Field(ge=1)] = 64 * 1024 * 1024
    """Largest request body, in bytes (32MiB)."""
    metrics_prefix: str = "engine:"
    """What the names of the metrics begin with."""
    otlp_traces_endpoint: str | None = None
    """OpenTelemetry collector that gets a trace of each request, http://host:4318/v1/traces."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least serious log line to print."""
    log_format: Literal["text", "json"] = "text"
    """One line of text, or one JSON object, for each log record."""
    access_log: bool = True
    """Log one line for each request; health checks that succeed are left out."""
    shutdown_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that running requests get to finish after Ctrl-C or SIGTERM."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(validation_message("ServerConfig", error)) from None
        self._check()

    def _check(self) -> None:
        if self.uds is not None and (clash := {"host", "port"} & self.model_fields_set):
            raise ConfigError(f"uds and {' and '.join(sorted(clash))} contradict each other")
        if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", self.metrics_prefix):
            raise ConfigError(
                f"metrics_prefix={self.metrics_prefix!r}: a metric's name is made of letters, "
                "digits, _ and :"
            )
        if self.root_path and not re.fullmatch(r"(/[^/?#\s]+)+", self.root_path):
            raise ConfigError(
                f"root_path={self.root_path!r}: must begin with / and not end with it"
            )
        for field in ("served_model_name", "api_key"):
            if not all(value.strip() for value in getattr(self, field)):
                raise ConfigError(f"{field}: must not be empty")
        if not all(key.isascii() and key.isprintable() for key in self.api_key):
            raise ConfigError("api_key: must be printable ASCII, as it is sent in a header")

    def check_files(self) -> None:
        """Check that what is read later can be, so that it isn't found out after loading.

        Raises:
            ConfigError: a file is missing, or is named without the one that it belongs to.
        """
        if self.ssl_certfile is None:
            for field in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
                if getattr(self, field) is not None:
                    raise ConfigError(f"{field}: needs ssl_certfile")
        for field in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "chat_template"):
            path = getattr(self, field)
            if path is None:
                continue
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigError(f"{field}={path}: cannot be read: {error.strerror}") from None
