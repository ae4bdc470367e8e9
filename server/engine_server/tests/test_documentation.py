"""The page on the server tells of every endpoint, parameter and metric, and of nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from docs.requests import REQUESTS, meaning_of
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from engine_server.chat_request import ChatCompletionRequest
from engine_server.completion_request import CompletionRequest
from engine_server.embeddings import EmbeddingRequest
from engine_server.responses_request import ResponsesRequest

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "server.md").read_text()
MODELS = [model for models in REQUESTS.values() for model in models]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_parameter_says_what_it_means(model: Any) -> None:
    for name, field in model.model_fields.items():
        assert meaning_of(field), name
        assert f"`{field.alias or name}`" in PAGE


@pytest.mark.parametrize(
    ("params", "model"),
    [
        (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
        (chat_create_params.CompletionCreateParamsBase, ChatCompletionRequest),
        (embedding_create_params.EmbeddingCreateParams, EmbeddingRequest),
        (response_create_params.ResponseCreateParamsBase, ResponsesRequest),
    ],
    ids=lambda value: value.__name__,
)
def test_no_parameter_of_openais_api_is_unknown(params: Any, model: Any) -> None:
    assert params.__annotations__.keys() <= model.model_fields.keys()


def test_every_endpoint_is_on_the_page_and_in_the_description(server: Any) -> None:
    described = server.client.get("/openapi.json").json()["paths"]
    for path in described:
        assert f"{re.sub(r'{model}', '{id}', path)}`" in PAGE, path
    for path in re.findall(r"`(?:GET |POST )?(/[a-z_0-9/{}]+)`", PAGE.partition("## Param")[0]):
        plain = path.replace("{id}", "{model}")
        assert plain in described or plain in ("/docs", "/openapi.json"), path


def names_of_metrics(server: Any) -> set[str]:
    text = server.client.get("/metrics").text
    return set(re.findall(r"^# TYPE engine:(\w+) ", text, re.MULTILINE))


def test_every_metric_is_on_the_page_and_the_dashboard_asks_for_nothing_else(server: Any) -> None:
    names = names_of_metrics(server)
    told = set(re.findall(r"`(\w+)`", PAGE.partition("## Metrics")[2]))
    assert names == told
    asked = set(re.findall(r"\$\{prefix\}(\w+)", (DOCS / "grafana.json").read_text()))
    assert {re.sub("_bucket$", "", name) for name in asked} <= names
    assert json.loads((DOCS / "grafana.json").read_text())["panels"]
