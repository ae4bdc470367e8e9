"""The piecewise compile mode over a toy decoder and a backend that compiles nothing."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from engine.artifacts import FileStore
from engine.errors import ConfigError, ModelError
from engine.events import CompiledUnit, Event, PhaseAdvanced
from engine.strategies import CompiledModel
from engine.testing import CompileStrategyConformance
from engine.testing.backends import CountingBackend, KeepingBackend
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine_compile_vllm_compile.strategy import PiecewiseCompile


class TestContract(CompileStrategyConformance):
    strategy = "vllm_compile"


def compiled(model: ToyDecoder, **settings: Any) -> tuple[CompiledModel, CountingBackend]:
    backend = CountingBackend()
    return PiecewiseCompile().compile(compile_job(model, backend, **settings)), backend


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_tokens": 20, "ranges": (1, 4, 8), "exact_sizes": (8, 9)},
        {"max_num_tokens": 1},
        {"max_num_tokens": 2},
        {"max_num_tokens": 3},
    ],
    ids=str,
)
def test_every_number_of_tokens_gives_the_models_own_bits(settings: dict[str, Any]) -> None:
    model = ToyDecoder(2, seed=random.randrange(1000))
    made, _ = compiled(model, **settings)
    for num_tokens in range(1, settings["max_num_tokens"] + 1):
        expected = run_step(model, model, num_tokens, seed=num_tokens)
        assert torch.equal(run_step(made.call, model, num_tokens, seed=num_tokens), expected)


@pytest.mark.parametrize("layers", [2, 3, 9])
def test_equal_layers_are_compiled_once_however_many_there_are(layers: int) -> None:
    made, backend = compiled(ToyDecoder(layers))
    assert made.report.pieces == layers + 1
    assert made.report.unique_pieces == len(backend.inputs) == 3


def test_layers_of_different_shape_do_not_share_a_piece() -> None:
    model = ToyDecoder(4)
    layer = model.layers[2]
    layer.up, layer.down = nn.Linear(16, 32, bias=False), nn.Linear(16, 16, bias=False)
    made, backend = compiled(model.requires_grad_(False))
    assert made.report.unique_pieces == len(backend.inputs) == 4
    assert torch.equal(run_step(made.call, model, 7), run_step(model, model, 7))


def test_layers_with_another_constant_do_not_share_a_piece() -> None:
    model = ToyDecoder(4)
    original = model.layers[2].forward
    model.layers[2].forward = lambda x: original(x) * 1.5
    made, _ = compiled(model)
    assert made.report.unique_pieces == 4
    assert torch.equal(run_step(made.call, model, 7), run_step(model, model, 7))


def test_a_number_of_tokens_runs_the_exact_size_before_the_range() -> None:
    model = ToyDecoder(1)
    events: list[Event] = []
    made, backend = compiled(model, exact_sizes=(5,), ranges=(16,), on_event=events.append)
    units = [event.unit for event in events if isinstance(event, CompiledUnit)]
    assert [unit.partition("[")[2] for unit in units] == ["5]"] * 2 + ["1-16]"] * 2 + ["17-64]"] * 2
    sizes = [inputs[0].shape[0] for inputs, dynamic in backend.inputs if not dynamic]
    assert all(isinstance(size, int) for size in sizes)
    assert made.report.ranges == (5, 16, 64)


def test_each_range_is_told_its_bounds() -> None:
    _, backend = compiled(ToyDecoder(1), ranges=(16,))
    bounds = set()
    for inputs, _ in backend.inputs:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        sizes: list[Any] = [tensor.shape[0] for tensor in tensors]
        size = next(size for size in sizes if isinstance(size, torch.SymInt))
        found = size.node.shape_env.var_to_range[size.node.expr]
        bounds.add((int(found.lower), int(found.upper)))
    assert bounds == {(2, 16), (17, 64)}


def test_without_splitting_ops_the_model_is_one_piece() -> None:
    model = ToyDecoder()
    made, backend = compiled(model, break_ops=())
    assert made.report.pieces == len(backend.inputs) == 1
    assert torch.equal(run_step(made.call, model, 7), run_step(model, model, 7))


def test_unknown_splitting_ops_are_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        compiled(ToyDecoder(), break_ops=("engine::atention", "custom_op"))
    message = str(caught.value)
    assert "splitting_ops: 'custom_op'" in message
    assert "engine::attention" in message
    with pytest.raises(ConfigError, match="Did you mean 'engine::attention'"):
        compiled(ToyDecoder(), break_ops=("engine::atention",))


@pytest.mark.parametrize(
    ("setting", "given"),
    [("compile_sizes", {"exact_sizes": (0,)}), ("compile_ranges", {"ranges": (65,)})],
)
def test_sizes_that_no_step_can_have_are_refused(setting: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: .* not within 1 and 64"):
        compiled(ToyDecoder(), **given)


def test_a_model_whose_python_depends_on_the_batch_is_refused_with_the_guard() -> None:
    class Branches(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(input_ids, positions)
            return hidden * 2 if input_ids.shape[0] == 1 else hidden

    with pytest.raises(
        ModelError, match=r"Branches .*`Ne\(num_tokens, 1\)`.*batch of 1.*test_vllm"
    ):
        compiled(Branches())


def test_intermediate_values_die_after_their_last_use() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    class Watching(CountingBackend):
        def compile(
            self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
        ) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                counts.append(sum(ref() is not None for ref in alive))
                results = graph.forward(*args)
                alive.extend(weakref.ref(result) for result in results)
                return results

            return call

    counts: list[int] = []
    model = ToyDecoder(8)
    made = PiecewiseCompile().compile(compile_job(model, Watching()))
    alive.clear()
    counts.clear()
    run_step(made.call, model, 3)
    assert counts[1:-1] == [counts[1]] * (len(counts) - 2)


def test_progress_and_cost_are_reported_piece_by_piece() -> None:
    events: list[Event] = []
    made, backend = compiled(ToyDecoder(), ranges=(16,), on_event=events.append)
    advanced = [event for event in events if isinstance(event, PhaseAdvanced)]
    assert [(event.done, event.detail) for event in advanced[:1]] == [(0, "trace")]
    assert [event.done for event in advanced[1:]] == [1, 2, 3, 4, 5, 6]
    assert {event.total for event in advanced[1:]} == {len(backend.inputs)}
    assert made.report.cache_misses == 6
    assert {"trace", "split", "compile", "warm-up"} <= made.report.seconds.keys()


def test_neither_random_numbers_nor_dynamos_settings_are_touched() -> None:
    state, settings = torch.get_rng_state(), torch._dynamo.config.get_config_copy()
    compiled(ToyDecoder())
    with pytest.raises(ConfigError):
        compiled(ToyDecoder(), break_ops=("nope",))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch._dynamo.config.get_config_copy() == settings


def test_operators_in_pieces_can_be_watched_unless_one_writes() -> None:
    library = torch.library.Library("toy_ops", "FRAGMENT")
    library.define("shift(Tensor x) -> Tensor")
    library.define("fill(Tensor(a!) x) -> ()")
    library.impl("shift", lambda x: x + 1, "CompositeExplicitAutograd")
    library.impl("fill", lambda x: [x.add_(1)].clear(), "CompositeExplicitAutograd")
    torch.library.register_fake("toy_ops::shift", torch.empty_like, lib=library)
    torch.library.register_fake("toy_ops::fill", lambda x: None, lib=library)

    class Shifts(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return torch.ops.toy_ops.shift(super().forward(input_ids, positions))  # type: ignore[no-any-return]  # operators are untyped

    class Fills(ToyDecoder):
        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(input_ids, positions)
            torch.ops.toy_ops.fill(hidden)
            return hidden

    for kind, watchable in ((ToyDecoder, True), (Shifts, True), (Fills, False)):
        model = kind(1)
        made, _ = compiled(model)
        assert made.watchable is watchable
        assert torch.equal(run_step(made.call, model, 4), run_step(model, model, 4))


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    model, backends = ToyDecoder(3), (KeepingBackend(), KeepingBackend())
    for backend in backends:
        job = compile_job(model, backend, store=FileStore(tmp_path), ranges=(8,))
        made = PiecewiseCompile().compile(job)
        assert torch.equal(run_step(made.call, model, 5), run_step(model, model, 5))
    assert [(len(b.graphs), b.loaded) for b in backends] == [(6, 0), (0, 6)]
    assert (made.report.cache_hits, made.report.cache_misses) == (6, 0)


def test_a_deeper_model_shares_nothing(tmp_path: Path) -> None:
    for layers in (2, 7):
        model, backend = ToyDecoder(layers), KeepingBackend()
        made = PiecewiseCompile().compile(compile_job(model, backend, store=FileStore(tmp_path)))
        assert torch.equal(run_step(made.call, model, 5), run_step(model, model, 5))
    assert (len(backend.graphs), backend.loaded) == (3, 0)
