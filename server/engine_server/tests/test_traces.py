"""Each request is a span within the client's trace; a collector gets it."""

from __future__ import annotations

import asyncio
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine.errors import ConfigError
from engine.testing.scripted_engine import ScriptedEngine
from engine_server.app import build_app
from engine_server.config import ServerConfig
from engine_server.state import ServerState
from engine_server.traces import Traced, make_tracer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


def test_a_request_is_a_span_within_the_clients_trace() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main() -> None:
        state = ServerState(ServerConfig())
        engine: Any = ScriptedEngine(text="fine")
        state.ready(engine)
        app = Traced(build_app(state), provider.get_tracer("test"))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"prompt": "a", "stream": True}
            headers = {**PARENT, "X-Request-Id": "mine"}
            response = await client.post("/v1/completions", json=body, headers=headers)
            assert response.text.endswith("data: [DONE]\n\n")
            engine.die()
            await client.post("/v1/completions", json=body)
            await client.get("/nothing")

    asyncio.run(main())
    streamed, dead, unknown = exporter.get_finished_spans()
    assert streamed.name == "POST /v1/completions"
    assert f"{streamed.context.trace_id:032x}" == TRACE
    told = dict(streamed.attributes or {})
    assert told["http.response.status_code"] == 200
    assert told["http.request.header.x-request-id"] == "mine"
    assert streamed.status.is_ok
    assert not dead.status.is_ok
    assert f"{dead.context.trace_id:032x}" != TRACE
    assert unknown.name == "GET"


def test_a_collector_gets_the_spans() -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=collector.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        tracer = make_tracer(url, "1.0")
        with tracer.start_as_current_span("made for a test"):
            pass
        tracer.span_processor.force_flush()
        tracer.span_processor.shutdown()
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    request = ExportTraceServiceRequest.FromString(received[0])
    (span,) = request.resource_spans[0].scope_spans[0].spans
    assert span.name == "made for a test"


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"modular-engine\[otel\]"):
        make_tracer("http://127.0.0.1:1/v1/traces", "1.0")
