"""Pooled prompts equal what the reference's hidden states give, however the steps fall."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from engine import LLM, ModelError, RequestError, SamplingParams
from engine.model_folder import read_pooling
from engine.testing.tiny import write_tiny_model

PROMPTS = ["a", "hello world, this is a prompt of some length", "x" * 90]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model: Path) -> Callable[[list[int], str], list[float]]:
    reference = AutoModel.from_pretrained(model, dtype=torch.float32)

    def pool(ids: list[int], kind: str) -> list[float]:
        with torch.inference_mode():
            states = reference(torch.tensor([ids])).last_hidden_state[0]
        vector = states.mean(0) if kind == "mean" else states[-1]
        numbers: list[float] = (vector / vector.norm()).tolist()
        return numbers

    return pool


@pytest.fixture(scope="module", params=[{}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}])
def llm(model: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    settings: dict[str, Any] = {"optimization_level": 0, "device": "cpu", "threads": 1}
    with LLM(str(model), num_kv_blocks=60, **settings, **request.param) as made:
        yield made


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_vectors_are_those_of_the_reference(llm: LLM, expected: Any, kind: str) -> None:
    params = SamplingParams(max_tokens=0, pooling=kind)
    generating = SamplingParams(max_tokens=30, ignore_eos=True)
    for _ in range(2):  # the second time from the prefix cache, where that may be
        results = llm.generate(
            [*PROMPTS, "and one that writes"], [params] * 3 + [generating], progress=False
        )
        for result in results[:3]:
            wanted = expected(result.prompt_token_ids, kind)
            assert result.embedding == pytest.approx(wanted, abs=1e-5)
            assert math.hypot(*(result.embedding or ())) == pytest.approx(1, abs=1e-5)
            assert result.outputs[0].token_ids == []
        assert results[3].embedding is None
        assert len(results[3].outputs[0].token_ids) == 30


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"pooling": "max", "max_tokens": 0}, "pooling"),
        ({"pooling": "mean"}, "max_tokens"),
        ({"pooling": "mean", "max_tokens": 0, "n": 2}, "n"),
    ],
    ids=str,
)
def test_what_cant_be_pooled_is_refused(given: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)
    assert caught.value.param == param


def test_a_folder_may_tell_how_its_model_pools(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
    file = tmp_path / "1_Pooling" / "config.json"
    file.parent.mkdir()
    for text, kind in (("mean_tokens", "mean"), ("lasttoken", "last")):
        file.write_text(f'{{"pooling_mode_{text}": true}}')
        assert read_pooling(tmp_path) == kind
    file.write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(ModelError, match="--pooling"):
        read_pooling(tmp_path)
