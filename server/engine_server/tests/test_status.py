"""Health, readiness, models, metrics, settings, tokens, keys, origins."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.events import PhaseAdvanced, PhaseFinished, PhaseStarted

BODY = {"prompt": "abc", "max_tokens": 3}


def test_a_starting_server_is_healthy_but_takes_no_requests(start_server: Any) -> None:
    server = start_server(starting=True)
    server.call(lambda: server.state.observe(PhaseStarted("compile", 35)))
    server.call(lambda: server.state.observe(PhaseAdvanced("compile", 3, 35)))
    assert server.client.get("/health").status_code == 200
    ready = server.client.get("/ready")
    assert ready.status_code == 503
    body = ready.json()
    assert (body["phase"], body["done"], body["of"]) == ("compile", 3, 35)
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/v1/engine"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
    ):
        response = server.client.request(method, path, json=BODY)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"] == {
            "message": "the engine is starting: compile (3 of 35)",
            "type": "service_unavailable",
            "param": None,
            "code": "starting",
        }
    assert server.client.get("/version").status_code == 200
    assert server.client.get("/metrics").status_code == 200


def test_a_server_becomes_ready(start_server: Any, scripted_engine: Any) -> None:
    server = start_server(starting=True)
    server.call(lambda: server.state.ready(scripted_engine()))
    assert server.client.get("/ready").json() == {"status": "ready"}
    assert server.client.head("/health").status_code == 200
    assert server.client.get("/v1/models").status_code == 200


def test_a_server_whose_engine_died_is_not_healthy(start_server: Any) -> None:
    server = start_server()
    server.call(server.engine.die)
    for path in ("/health", "/ready", "/v1/models", "/v1/engine"):
        response = server.client.get(path)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
    assert server.client.head("/health").status_code == 503
    assert server.client.get("/metrics").status_code == 200


def test_the_official_client_lists_models(start_server: Any) -> None:
    server = start_server(config={"served_model_name": ("a", "org/b")})
    with server.openai() as client:
        assert [model.id for model in client.models.list()] == ["a", "org/b"]
        assert client.models.retrieve("org/b").owned_by == "engine"
        for name in ("a", "org/b"):
            assert client.completions.create(model=name, prompt="x").model == name
        with pytest.raises(openai.NotFoundError, match="has a, org/b"):
            client.completions.create(model="scripted", prompt="x")
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("scripted")
    assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == 512


def test_the_settings_in_force_are_told_with_reasons(server: Any) -> None:
    body = server.client.get("/v1/engine").json()
    (record,) = body["settings"]
    assert record == {
        "setting": "dtype",
        "requested": "",
        "effective": "float32",
        "decided_by": "device",
        "reason": "exact",
        "remedy": "",
    }
    assert body["stats"]["num_blocks"] == 1000
    assert body["model"] == "scripted"


def samples(server: Any) -> dict[str, float]:
    text = server.client.get("/metrics").text
    return {
        f"{s.name}{sorted(s.labels.items())}": s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_metrics_count_requests_tokens_and_latencies(start_server: Any) -> None:
    server = start_server(text="abcde")
    for stream in (False, True):
        server.client.post("/v1/completions", json={**BODY, "stream": stream, "n": 2})
    server.client.post("/v1/completions", json={"prompt": 5})
    server.client.get("/some/path")
    server.wait(lambda: server.state.running == 0)
    found = samples(server)
    route = "('handler', '/v1/completions'), ('method', 'POST'), ('status', '%d')"
    assert found[f"engine:http_requests_total[{route % 200}]"] == 2
    assert found[f"engine:http_requests_total[{route % 400}]"] == 1
    unknown = "('handler', 'unknown'), ('method', 'GET'), ('status', '404')"
    assert found[f"engine:http_requests_total[{unknown}]"] == 1
    assert found["engine:time_to_first_token_seconds_count[]"] == 2
    assert found["engine:e2e_request_latency_seconds_count[]"] == 2
    assert found["engine:request_prompt_tokens_sum[]"] == 6
    assert found["engine:request_generation_tokens_sum[]"] == 12
    assert found["engine:inter_token_latency_seconds_count[]"] == 8
    assert found["engine:inter_token_latency_seconds_bucket[('le', '+Inf')]"] == 8
    assert found["engine:request_queue_time_seconds_sum[]"] == pytest.approx(0.06)
    for name in ("prefill_time", "decode_time", "inference_time", "time_per_output_token"):
        assert found[f"engine:request_{name}_seconds_count[]"] == 2
    cache = [name for name in found if name.startswith("engine:cache_config_info")]
    assert "('block_size', '16')" in cache[0]
    assert "('num_gpu_blocks', '1000')" in cache[0]
    assert found["engine:kv_cache_usage_perc[]"] == 0
    assert found["engine:num_requests_running[]"] == 0
    assert found["engine:settings_info[('dtype', 'float32')]"] == 1
    assert found["engine:request_success_total[('finished_reason', 'stop')]"] == 2
    assert found["engine:startup_seconds[('phase', 'load')]"] == 1.5
    assert found["engine:compile_seconds[('phase', 'trace')]"] == 2.0
    assert found["engine:compiled_units[('source', 'loaded')]"] == 3
    assert found["engine:compiled_units[('source', 'compiled')]"] == 0
    assert found["engine:ready_seconds[]"] == 4.5


def test_the_prefix_of_metrics_can_be_chosen(start_server: Any) -> None:
    server = start_server(config={"metrics_prefix": "vllm:"})
    found = samples(server)
    assert "vllm:num_requests_running[]" in found
    assert not any(name.startswith("engine:") for name in found)


def test_openmetrics_is_spoken_to_who_asks_for_it(server: Any) -> None:
    response = server.client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


def test_a_slow_engine_does_not_hold_metrics_back(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(server.engine, "stats", never)
    monkeypatch.setattr("engine_server.status_routes._STATS_SECONDS", 0.05)
    assert server.client.get("/metrics").status_code == 200
    assert server.client.get("/v1/engine").status_code == 503


def test_text_becomes_tokens_and_text_again(server: Any, tokenizer: Any) -> None:
    text = "Grüße 😀"
    answer = server.client.post("/tokenize", json={"prompt": text, "return_token_strs": True})
    body = answer.json()
    assert body["tokens"] == tokenizer(text).input_ids
    assert body["count"] == len(text.encode())
    assert body["max_model_len"] == 512
    assert body["token_strs"][0] == "G"
    back = server.client.post("/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": text}


def test_a_conversation_becomes_tokens(server: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = server.client.post("/tokenize", json={"messages": messages}).json()
    assert tokenizer.decode(body["tokens"]) == "user: hi\nassistant: "


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 257]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 10**12]}, "tokens[1]"),
    ],
)
def test_what_can_not_be_turned_into_tokens_or_text_is_refused(
    server: Any, path: str, body: dict[str, Any], param: str
) -> None:
    response = server.client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_keys_guard_everything_but_the_probes(start_server: Any) -> None:
    server = start_server(config={"api_key": ("first", "second")})
    for path in ("/health", "/ready", "/metrics"):
        assert server.client.get(path).status_code == 200
    for path in ("/v1/models", "/v1/engine", "/version", "/openapi.json", "/unknown"):
        response = server.client.get(path)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"
    for key in ("first", "second"):
        with server.openai(key) as client:
            assert client.models.list().data
    with server.openai("firs") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    for value in ("first", "Basic first", "Bearer", "Bearer \u00e9"):
        headers = {"Authorization": value.encode("latin-1")}
        assert server.client.get("/v1/models", headers=headers).status_code == 401


def test_only_named_origins_may_ask_from_a_browser(start_server: Any) -> None:
    config = {"allowed_origins": ("http://good.test",), "api_key": ("k",)}
    server = start_server(config=config)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    good = server.client.options("/v1/completions", headers={"Origin": "http://good.test", **asked})
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "http://good.test"
    bad = server.client.options("/v1/completions", headers={"Origin": "http://bad.test", **asked})
    assert "access-control-allow-origin" not in bad.headers
    refused = server.client.get("/v1/models", headers={"Origin": "http://good.test"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://good.test"


def test_a_proxy_may_publish_the_server_under_a_path(start_server: Any) -> None:
    server = start_server(config={"root_path": "/llm", "api_key": ("k",)})
    headers = {"Authorization": "Bearer k"}
    for prefix in ("", "/llm"):
        assert server.client.get(f"{prefix}/health").status_code == 200
        assert server.client.get(f"{prefix}/v1/models").status_code == 401
        assert server.client.get(f"{prefix}/v1/models", headers=headers).status_code == 200


def test_an_answer_carries_the_id_of_its_request(server: Any) -> None:
    given = server.client.get("/version", headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = {server.client.get("/version").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    unsafe = server.client.get("/version", headers={"X-Request-Id": "a b"})
    assert unsafe.headers["x-request-id"] != "a b"


def test_the_description_names_every_field(server: Any) -> None:
    schema = server.client.get("/openapi.json").json()
    schemas = schema["components"]["schemas"]
    operation = schema["paths"]["/v1/completions"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/CompletionRequest"
    assert {"prompt", "temperature", "user"} <= set(schemas["CompletionRequest"]["properties"])
    assert {"Completion", "ChatCompletion", "ErrorAnswer", "Usage"} <= set(schemas)
    assert "x-answer" not in str(schema)


def test_the_seconds_of_phases_are_kept(start_server: Any) -> None:
    server = start_server(starting=True)
    for seconds in (1.0, 0.5):
        server.call(lambda seconds=seconds: server.state.observe(PhaseFinished("load", seconds)))
    assert server.state.phase_seconds == {"load": 1.5}


def test_the_tokenizer_is_described(server: Any, tokenizer: Any, start_server: Any) -> None:
    told = server.client.get("/tokenizer_info").json()
    assert told["vocab_size"] == len(tokenizer)
    assert told["eos_token"] == tokenizer.eos_token
    assert told["chat_template"] == tokenizer.chat_template
    assert told["bos_token"] is None
    without = start_server(with_tokenizer=False)
    assert without.client.get("/tokenizer_info").status_code == 400
