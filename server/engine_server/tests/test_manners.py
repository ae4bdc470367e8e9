"""Time limits, HTTPS and log lines."""

from __future__ import annotations

import json
import logging
import ssl
from typing import Any

import httpx
import openai
import pytest
import trustme

from engine.errors import ConfigError
from engine_server.config import ServerConfig
from engine_server.lifecycle import tls_settings
from engine_server.logs import ACCESS, JsonLines, set_up_logging

COMPLETIONS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}),
]


@pytest.mark.parametrize(("path", "body"), COMPLETIONS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(
    start_server: Any, path: str, body: Any, stream: bool
) -> None:
    server = start_server(hold=True, config={"request_timeout": 0.05})
    response = server.client.post(path, json={**body, "stream": stream})
    assert response.status_code == 504, response.text
    error = response.json()["error"]
    assert error["code"] == "request_timeout"
    assert "0.05 s (--request-timeout)" in error["message"]
    server.wait(lambda: server.engine.free_blocks == 1000)
    assert server.engine.aborted == 1


def test_a_stream_that_takes_too_long_says_so(start_server: Any) -> None:
    server = start_server(text="text", pause_after=2, config={"request_timeout": 0.2})
    with server.openai() as client, pytest.raises(openai.APIError, match="took longer"):
        list(client.completions.create(model="scripted", prompt="a", stream=True))
    server.wait(lambda: server.engine.free_blocks == 1000)


def test_several_prompts_share_the_limit(start_server: Any) -> None:
    server = start_server(hold=True, config={"request_timeout": 0.05})
    response = server.client.post("/v1/completions", json={"prompt": ["a", "b", "c"]})
    assert response.status_code == 504
    server.wait(lambda: server.engine.free_blocks == 1000)


def test_what_is_in_time_isnt_touched(start_server: Any) -> None:
    server = start_server(text="fine", config={"request_timeout": 30})
    assert server.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def test_https_is_served_with_a_certificate(
    start_server: Any, authority: trustme.CA, tmp_path: Any
) -> None:
    file = tmp_path / "all.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    server = start_server(config={"ssl_certfile": file})
    context = ssl.create_default_context()
    authority.configure_trust(context)
    url = server.url.replace("http:", "https:")
    assert httpx.get(f"{url}/health", verify=context).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_clients_can_be_asked_for_certificates_too(
    start_server: Any, authority: trustme.CA, tmp_path: Any
) -> None:
    file, root = tmp_path / "all.pem", tmp_path / "root.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    authority.cert_pem.write_to_path(str(root))
    server = start_server(config={"ssl_certfile": file, "ssl_ca_certs": root})
    url = server.url.replace("http:", "https:")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        httpx.get(f"{url}/health", verify=context)
    authority.issue_cert("client@test").configure_cert(context)
    assert httpx.get(f"{url}/health", verify=context).status_code == 200


def test_an_unusable_certificate_is_told(authority: trustme.CA, tmp_path: Any) -> None:
    file = tmp_path / "cert.pem"
    authority.cert_pem.write_to_path(str(file))
    with pytest.raises(ConfigError, match=r"ssl_certfile=.*cannot be used"):
        tls_settings(ServerConfig(ssl_certfile=file))


def test_an_answer_is_one_line_with_the_requests_id(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(text="x")
    with caplog.at_level(logging.INFO, "engine_server.access"):
        headers = {"X-Request-Id": "my-id"}
        server.client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
        server.client.get("/health")
        server.client.get("/a%0Ab%22")
        server.wait(lambda: len(caplog.records) >= 2)
    first, unknown = caplog.records
    assert '"POST /v1/completions" 200 in 0.' in first.getMessage()
    assert first.getMessage().endswith("request my-id")
    assert '"GET /a%0Ab%22" 404' in unknown.getMessage()
    line = json.loads(JsonLines().format(first))
    assert line["request_id"] == "my-id"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["level"], line["logger"]) == ("info", "engine_server.access")


def test_a_failure_is_one_json_line_too() -> None:
    try:
        raise ValueError("oh\nno")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 40, "", 0, "it %s", ("broke",), None)
        import sys

        record.exc_info = sys.exc_info()
    text = JsonLines().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "it broke"
    assert "ValueError: oh" in line["exception"]


def test_the_access_log_can_be_switched_off() -> None:
    try:
        set_up_logging(ServerConfig(access_log=False))
        assert not ACCESS.isEnabledFor(logging.INFO)
    finally:
        set_up_logging(ServerConfig())
    assert ACCESS.isEnabledFor(logging.INFO)
