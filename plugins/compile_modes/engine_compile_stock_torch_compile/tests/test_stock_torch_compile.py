"""torch.compile as PyTorch ships it, over a toy decoder and a backend that compiles nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.errors import CompileError, ConfigError
from engine.events import CompiledUnit, Event, Notice
from engine.strategies import CompiledModel
from engine.testing import CompileStrategyConformance
from engine.testing.backends import CountingBackend
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine_compile_stock_torch_compile.strategy import StockOptions, StockTorchCompile


class TestContract(CompileStrategyConformance):
    strategy = "stock_torch_compile"


Made = tuple[CompiledModel, CountingBackend, StockTorchCompile]


def compiled(model: ToyDecoder, options: dict[str, Any] | None = None, **settings: Any) -> Made:
    backend, strategy = CountingBackend(), StockTorchCompile(StockOptions(**(options or {})))
    return strategy.compile(compile_job(model, backend, **settings)), backend, strategy


@pytest.mark.parametrize("dynamic", [True, None])
def test_every_number_of_tokens_gives_the_models_own_bits(dynamic: bool | None) -> None:
    model = ToyDecoder(2, seed=random.randrange(1000))
    made, backend, strategy = compiled(model, {"dynamic": dynamic}, max_num_tokens=20)
    count = len(backend.graphs)
    for num_tokens in random.sample(range(1, 21), 20):
        assert torch.equal(
            run_step(made.call, model, num_tokens), run_step(model, model, num_tokens)
        )
    assert len(backend.graphs) == count == made.report.pieces
    strategy.close()


def test_a_recompilation_while_serving_is_reported_late_with_its_reason() -> None:
    class Branches(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(input_ids, positions)
            return hidden * 2 if input_ids.shape[0] == 7 else hidden

    model, events = Branches(1), list[Event]()
    made, _, strategy = compiled(model, on_event=events.append)
    units = [event for event in events if isinstance(event, CompiledUnit)]
    assert units
    assert not any(unit.late for unit in units)
    events.clear()
    assert torch.equal(run_step(made.call, model, 7), run_step(model, model, 7))
    (late,) = [event for event in events if isinstance(event, CompiledUnit)]
    assert late.late
    assert "7" in late.reason
    assert "size" in late.reason
    strategy.close()


def test_sizes_that_will_be_asked_for_are_compiled_before_compile_returns() -> None:
    model = ToyDecoder(1)
    _, static, one = compiled(model, {"dynamic": False}, exact_sizes=(3, 5), max_num_tokens=9)
    assert len(static.graphs) == 5  # 1, 2, 3, 5, 9
    one.close()


def test_running_uncompiled_is_noticed_and_not_silent() -> None:
    model, events = ToyDecoder(1), list[Event]()
    with torch._dynamo.config.patch(recompile_limit=3):
        made, _, strategy = compiled(
            model, {"dynamic": False}, max_num_tokens=4, on_event=events.append
        )
        assert not [event for event in events if isinstance(event, Notice)]
        expected = run_step(model, model, 3)
        assert torch.equal(run_step(made.call, model, 3), expected)
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "uncompiled" in notice.message
    strategy.close()


def test_a_graph_break_is_compiled_around_unless_fullgraph_is_asked() -> None:
    class Breaks(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(input_ids, positions)
            torch._dynamo.graph_break()
            return hidden * 2

    model = Breaks(1)
    made, backend, strategy = compiled(model, max_num_tokens=9)
    assert len(backend.graphs) > 1
    assert torch.equal(run_step(made.call, model, 7), run_step(model, model, 7))
    strategy.close()
    with pytest.raises(CompileError, match=r"Breaks: .*graph_break.*leave mode_options.fullgraph"):
        compiled(Breaks(1), {"fullgraph": True})


def test_sizes_that_no_step_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="compile_sizes: 65 is not within 1 and 64"):
        compiled(ToyDecoder(1), exact_sizes=(65,))


def test_two_engines_of_one_class_count_their_own_compilations() -> None:
    models = [ToyDecoder(1, seed=seed) for seed in (1, 2)]
    made = [compiled(model) for model in models]
    assert made[0][0].report.pieces == made[1][0].report.pieces == len(made[1][1].graphs)
    for model, (one, _, strategy) in zip(models, made, strict=True):
        assert torch.equal(run_step(one.call, model, 5), run_step(model, model, 5))
        strategy.close()
