"""OpenTelemetry traces: one span for each request, within the client's trace."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import ConfigError


def make_tracer(endpoint: str, version: str) -> Any:
    """Return a tracer that exports in batches to an OTLP endpoint over HTTP.

    Args:
        endpoint: URL that takes traces, `http://host:4318/v1/traces`.
        version: of the server.

    Raises:
        ConfigError: OpenTelemetry isn't installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint={endpoint}: needs OpenTelemetry ({error}); install "
            "modular-engine[otel]"
        ) from None
    resource = Resource.create({"service.name": "engine", "service.version": version})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider.get_tracer("engine_server", version)


class Traced:
    """Makes a span of each request; plain ASGI, so that streams stay cheap.

    Args:
        app: what answers.
        tracer: an OpenTelemetry tracer.
    """

    def __init__(self, app: ASGIApp, tracer: Any) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self._app, self._tracer = app, tracer
        self._extract, self._kind = extract, SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        method = scope["method"]
        with self._tracer.start_as_current_span(
            method,
            context=self._extract(headers),
            kind=self._kind,
            attributes={"http.request.method": method, "url.path": scope["path"]},
        ) as span:

            async def traced_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._answered(span, scope, message)
                await send(message)

            await self._app(scope, receive, traced_send)

    def _answered(self, span: Any, scope: Scope, message: Message) -> None:
        status = message["status"]
        span.set_attribute("http.response.status_code", status)
        if (route := getattr(scope.get("route"), "path", None)) is not None:
            span.set_attribute("http.route", route)
            span.update_name(f"{scope['method']} {route}")
        for name, value in message["headers"]:
            if name == b"x-request-id":
                span.set_attribute("http.request.header.x-request-id", value.decode("latin-1"))
        if status >= 500:
            span.set_status(self._failed)
