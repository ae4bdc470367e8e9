"""The whole-graph mode over a toy decoder and a backend that compiles nothing."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.errors import ModelError
from engine.events import CompiledUnit, Event
from engine.strategies import CompiledModel
from engine.testing import CompileStrategyConformance
from engine.testing.backends import CountingBackend
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine_compile_dynamo_trace_once.strategy import TraceOnce


class TestContract(CompileStrategyConformance):
    strategy = "dynamo_trace_once"


def compiled(model: ToyDecoder, **settings: Any) -> tuple[CompiledModel, CountingBackend]:
    backend = CountingBackend()
    return TraceOnce().compile(compile_job(model, backend, **settings)), backend


@pytest.mark.parametrize("max_num_tokens", [1, 2, 3, 20])
def test_every_number_of_tokens_gives_the_models_own_bits(max_num_tokens: int) -> None:
    model = ToyDecoder(2, seed=random.randrange(1000))
    made, _ = compiled(model, max_num_tokens=max_num_tokens)
    for num_tokens in range(1, max_num_tokens + 1):
        expected = run_step(model, model, num_tokens, seed=num_tokens)
        assert torch.equal(run_step(made.call, model, num_tokens, seed=num_tokens), expected)


def test_one_graph_with_its_break_ops_inside_serves_all_sizes() -> None:
    model, events = ToyDecoder(3), list[Event]()
    made, backend = compiled(model, on_event=events.append)
    (graph,) = backend.graphs
    assert sum("attention" in str(node.target) for node in graph.graph.nodes) == 3
    assert [event.unit for event in events if isinstance(event, CompiledUnit)] == ["model [1-64]"]
    assert made.report.pieces == made.report.cache_misses == 1


@pytest.mark.parametrize(
    ("branch", "guard"),
    [
        (lambda ids: ids.shape[0] == 1, r"Ne\(num_tokens, 1\)"),
        (lambda ids: ids.shape[0] > 4, r"num_tokens > 4"),
        (lambda ids: ids.shape[0] % 8 == 0, r"(Eq|Ne)\(Mod\(num_tokens, 8\), 0\)"),
        (lambda ids: ids.shape[0] < 60, r"num_tokens (<|>=) 60"),
        (lambda ids: ids[0] > 3, r"[Dd]ata-dependent"),
    ],
    ids=["one", "more than four", "multiples of eight", "few", "values"],
)
def test_python_that_depends_on_the_batch_is_refused_with_the_guard_it_needs(
    branch: Callable[[torch.Tensor], Any], guard: str
) -> None:
    class Branches(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(input_ids, positions)
            return hidden * 2 if branch(input_ids) else hidden

    with pytest.raises(ModelError, match=guard) as caught:
        compiled(Branches(1))
    assert "Branches can't be traced once" in str(caught.value)
    assert "test_dynamo_trace_once.py" in str(caught.value)


def test_a_guard_about_sizes_beyond_the_largest_step_is_no_reason_to_refuse() -> None:
    class Branches(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(input_ids, positions)
            return hidden * 2 if input_ids.shape[0] > 64 else hidden

    model = Branches(1)
    made, _ = compiled(model, max_num_tokens=64)
    assert torch.equal(run_step(made.call, model, 64), run_step(model, model, 64))


def test_a_refused_model_is_not_kept_by_dynamo_either() -> None:
    class Branches(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(input_ids, positions)
            return hidden * 2 if input_ids.shape[0] > 4 else hidden

    model = Branches(1)
    gone = weakref.ref(model.embedding.weight)
    with pytest.raises(ModelError):
        compiled(model)
    del model
    gc.collect()
    assert gone() is None


def test_random_numbers_and_settings_are_as_before_also_after_a_refusal() -> None:
    class Fails(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return super().forward(input_ids, positions) * (2 if input_ids[0] > 3 else 1)

    state, settings = torch.get_rng_state(), torch._dynamo.config.get_config_copy()
    shapes = torch.fx.experimental._config.get_config_copy()  # type: ignore[attr-defined]  # added by torch's config machinery
    compiled(ToyDecoder(1))
    with pytest.raises(ModelError):
        compiled(Fails(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch._dynamo.config.get_config_copy() == settings
    assert torch.fx.experimental._config.get_config_copy() == shapes  # type: ignore[attr-defined]  # likewise
