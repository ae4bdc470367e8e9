"""Vectors of texts, as OpenAI's client gets them; models that aren't made for them say so."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse

from engine import AsyncEngine
from engine.config import EngineConfig
from engine.testing.tiny import write_tiny_model
from engine_server.config import ServerConfig


@pytest.mark.parametrize("given", ["hi", ["hi", "hello"], [1, 2, 3], [[1, 2], [3]]], ids=str)
@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_the_official_client_gets_each_inputs_vector(
    start_server: Any, given: Any, encoding: str | None
) -> None:
    server = start_server(pooling="last")
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    sizes = [(len(one), ord(one[0]) if isinstance(one, str) else one[0]) for one in inputs]
    more = {} if encoding is None else {"encoding_format": encoding}
    with server.openai() as client:
        answer = client.embeddings.create(model="scripted", input=given, **more)
    assert [item.index for item in answer.data] == list(range(len(inputs)))
    if encoding != "base64":  # the client decodes what it asked for itself only
        assert [item.embedding[0] for item in answer.data] == [n / 2 for n, _ in sizes]
    else:
        assert all(isinstance(item.embedding, str) for item in answer.data)
    assert answer.usage.prompt_tokens == sum(n for n, _ in sizes)
    assert {params.pooling for params in server.engine.submitted} == {"last"}


def test_the_answer_is_what_the_official_types_demand(start_server: Any) -> None:
    server = start_server(pooling="mean")
    response = server.client.post("/v1/embeddings", json={"input": "hi", "user": "me"})
    CreateEmbeddingResponse.model_validate_json(response.text, strict=True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [""] * 2049}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": [999]}, "input"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "encoding_format": "xml"}, "encoding_format"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "model": "other"}, "model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cant_be_embedded_is_refused(start_server: Any, body: Any, param: str) -> None:
    server = start_server(pooling="mean")
    response = server.client.post("/v1/embeddings", json=body)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] == param
    assert server.engine.free_blocks == 1000


def test_a_model_that_isnt_made_for_it_says_what_to_do(start_server: Any) -> None:
    response = start_server().client.post("/v1/embeddings", json={"input": "hi"})
    assert response.status_code == 400
    assert "--pooling mean" in response.json()["error"]["message"]


def test_the_real_engine_makes_vectors_beside_texts(running_server: Any, tmp_path: Any) -> None:
    model = write_tiny_model(tmp_path / "model", max_model_len=128)
    config = EngineConfig(
        model=str(model),
        optimization_level=0,
        device="cpu",
        threads=1,
        num_kv_blocks=100,
        pooling="mean",
    )
    names = ServerConfig(served_model_name=("tiny",))
    with (
        running_server(None, names, start=lambda: AsyncEngine.start(config)) as server,
        server.openai() as client,
    ):
        texts = ["same", "other", "same"]
        vectors = [
            item.embedding for item in client.embeddings.create(model="tiny", input=texts).data
        ]
        assert client.completions.create(model="tiny", prompt="a", max_tokens=2).choices
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-5)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)
    assert len(vectors[0]) == 32
