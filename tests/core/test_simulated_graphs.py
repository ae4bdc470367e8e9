"""The simulated graph device: what CUDA does is done, what CUDA couldn't do is refused."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine.batch import BatchShape
from engine.forward_context import ForwardContext, forward_context
from engine.graph_device import RecordedGraph
from engine.ops import break_op, declare_recordable
from engine.runtime.simulated_graphs import SimulatedGraphDevice

SHAPE = BatchShape(4, 2, 3, uniform_decode=False)


@pytest.fixture
def device() -> Iterator[SimulatedGraphDevice]:
    with torch.inference_mode():
        yield SimulatedGraphDevice()


def context() -> Any:
    nothing: Any = None
    return forward_context(ForwardContext(SHAPE, nothing, None, (), ()))


def record(device: SimulatedGraphDevice, work: Callable[[], Any]) -> tuple[RecordedGraph, Any]:
    with device.session(), context():
        device.begin()
        result = work()
        graph = device.end()
    assert graph is not None
    return graph, result


@break_op("simulated_test::halve", mutates_args=("out",))
def halve(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * weight / 2)


def network() -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """A random module, and a function with views, in-place writes and a product with out=."""
    module = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6)).requires_grad_(False)

    def call(x: torch.Tensor) -> torch.Tensor:
        first, second = module(x).chunk(2, dim=-1)
        joined = torch.cat((first.sin(), second.contiguous() * 2), dim=-1)
        joined[:, 1:3] += F.rms_norm(x.float(), (6,))[:, :2]
        product = torch.empty(x.shape[0], x.shape[0])
        torch.mm(joined, x.t(), out=product)
        return product.softmax(-1) @ joined

    return module, call


def test_recording_computes_nothing_and_a_replay_everything(device: SimulatedGraphDevice) -> None:
    _, call = network()
    static = torch.randn(4, 6)
    graph, result = record(device, lambda: call(static))
    assert result.isnan().all()
    for _ in range(3):
        static.copy_(torch.randn(4, 6))
        graph.replay()
        assert torch.equal(result, call(static))


def test_recording_changes_no_buffer(device: SimulatedGraphDevice) -> None:
    counter = torch.zeros(3, dtype=torch.int64)
    graph, _ = record(device, lambda: counter.add_(2))
    assert counter.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert counter.tolist() == [4, 4, 4]


def test_integers_are_poisoned_with_what_no_index_survives(device: SimulatedGraphDevice) -> None:
    ids = torch.tensor([1, 2])
    graph, result = record(device, lambda: ids + 1)
    assert (result == torch.iinfo(torch.int64).max).all()
    graph.replay()
    assert result.tolist() == [2, 3]


def test_a_number_read_by_python_is_frozen_as_on_cuda(device: SimulatedGraphDevice) -> None:
    static, factor = torch.ones(2), 3
    graph, result = record(device, lambda: static * factor)
    factor = 4
    graph.replay()
    assert result.tolist() == [3, 3]


def test_an_empty_recording_is_no_graph(device: SimulatedGraphDevice) -> None:
    static = torch.ones(4, 2)
    with device.session():
        device.begin()
        static.view(8)
        assert device.end() is None


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: bool(x.sum() > 0), "_local_scalar_dense"),
        (lambda x: int(x.sum()), "_local_scalar_dense"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "cpu"),
        (lambda x: x.numpy(), "numpy"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x.unique(), "_unique2"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: x.resize_(9), "resize_"),
        (lambda x: torch.mm(x, x, out=torch.empty(0)), "mm"),
    ],
)
def test_what_waits_for_the_device_is_refused_by_name(
    device: SimulatedGraphDevice, work: Callable[[torch.Tensor], Any], named: str
) -> None:
    static = torch.randn(3, 3)

    def model(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        work(static)
        return static + 1

    call = device.adopt(model, compiled=False)
    with device.session(), context():
        device.begin()
        with pytest.raises(RuntimeError, match=named):
            call(static, static)
    graph, result = record(device, lambda: static + 1)
    graph.replay()
    assert torch.equal(result, static + 1)


def test_a_swallowed_refusal_invalidates_the_recording(device: SimulatedGraphDevice) -> None:
    static = torch.ones(2)
    with device.session():
        device.begin()
        with pytest.raises(RuntimeError, match="_local_scalar_dense"):
            bool(static.sum())
        assert static.shape == (2,)
        with pytest.raises(RuntimeError, match=r"invalid.*_local_scalar_dense"):
            device.end()


def test_a_freed_input_is_refused_at_replay(device: SimulatedGraphDevice) -> None:
    static, temporary = torch.ones(2), [torch.ones(2)]
    graph, result = record(device, lambda: static + temporary[0])
    graph.replay()
    assert result.tolist() == [2, 2]
    temporary.clear()
    with pytest.raises(RuntimeError, match=r"aten\.add\.Tensor.*freed"):
        graph.replay()


def test_a_moved_input_is_refused_at_replay(device: SimulatedGraphDevice) -> None:
    layer = nn.Linear(2, 2).requires_grad_(False)
    static = torch.ones(1, 2)
    graph, _ = record(device, lambda: layer(static))
    graph.replay()
    layer.weight.data = layer.weight.data.clone()
    with pytest.raises(RuntimeError, match=r"freed|moved"):
        graph.replay()


def test_a_view_keeps_its_place(device: SimulatedGraphDevice) -> None:
    static = torch.zeros(10)
    graph, result = record(device, lambda: static[4:6] * 2)
    static.copy_(torch.arange(10.0))
    graph.replay()
    assert result.tolist() == [8, 10]


def test_dead_memory_goes_to_the_next_recording(device: SimulatedGraphDevice) -> None:
    static = torch.ones(64)
    record(device, lambda: static * 2)
    gc.collect()
    before = device.memory()
    for size in (64, 32, 8):
        record(device, lambda size=size: static[:size] * 2)  # type: ignore[misc]  # binds the size
        gc.collect()
    assert device.memory() == before


def test_an_alias_alone_doesnt_keep_memory(device: SimulatedGraphDevice) -> None:
    static = torch.ones(64)
    graph, result = record(device, lambda: static * 2)
    alias = device.alias(result)
    graph.replay()
    assert torch.equal(alias, static * 2)
    _, kept = record(device, lambda: static * 3)
    assert torch.equal(alias, static * 2), "its tensor is alive"
    del result, kept
    gc.collect()
    record(device, lambda: static * 4)
    record(device, lambda: static * 5)
    assert alias.isnan().all()


def test_an_alias_of_freed_foreign_memory_is_refused(device: SimulatedGraphDevice) -> None:
    static, temporary = torch.ones(2), torch.ones(64)
    graph, _ = record(device, lambda: static + 1)
    alias = device.alias(temporary)
    graph.replay()
    del temporary
    with pytest.raises(RuntimeError, match="alias"):
        graph.replay()
    del alias
    graph.replay()


def test_recordings_dont_nest_and_need_a_session(device: SimulatedGraphDevice) -> None:
    static = torch.ones(2)
    graph, _ = record(device, lambda: static + 1)
    with pytest.raises(RuntimeError, match="session"):
        device.begin()
    with device.session():
        with pytest.raises(RuntimeError, match="session"), device.session():
            pass
        with pytest.raises(RuntimeError, match="no recording"):
            device.end()
        device.begin()
        with pytest.raises(RuntimeError, match="while recording"):
            device.begin()
        with pytest.raises(RuntimeError, match="while another"):
            graph.replay()


def test_work_in_a_session_but_outside_a_recording_just_runs(device: SimulatedGraphDevice) -> None:
    static = torch.ones(2)
    with device.session():
        assert (static + 1).tolist() == [2, 2]
        device.begin()
        recorded = static + 1
        graph = device.end()
        assert (static + 1).tolist() == [2, 2]
    assert graph is not None
    assert recorded.isnan().all()


def test_an_unknown_operator_is_refused_until_vouched_for(device: SimulatedGraphDevice) -> None:
    name = f"simulated_test::op_{secrets.token_hex(4)}"

    @torch.library.custom_op(name, mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    triple.register_fake(torch.empty_like)
    static = torch.ones(2)
    with device.session():
        device.begin()
        with pytest.raises(RuntimeError, match=rf"{name}.*declare_recordable"):
            triple(static)
    declare_recordable(name)
    graph, result = record(device, lambda: triple(static))
    graph.replay()
    assert result.tolist() == [3, 3]


class Breaks:
    """A recorder like a piecewise strategy's, without protection for anything."""

    def __init__(self, device: SimulatedGraphDevice) -> None:
        self.device, self.calls = device, list[Callable[[], Any]]()

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        graph = self.device.end()
        if graph is not None:
            self.calls.append(graph.replay)
        call(*args)
        kept = [self.device.alias(arg) for arg in args]
        self.calls.append(lambda: call(*kept))
        self.device.begin()


WEIGHT = torch.tensor([2.0, 4.0, 8.0])


def decoder(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Two break ops, one of which is handed a parameter and a static input."""
    x = ids.float().unsqueeze(1) * torch.ones(3)
    out = torch.empty_like(x)
    halve(x.sin(), WEIGHT, out)
    x = x + out.cos()
    other = torch.empty_like(x)
    halve(x, positions.float().unsqueeze(1).expand_as(x).contiguous(), other)
    return x * other


def expected(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    with context():
        return decoder(ids, positions)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("pieces", [False, True])
def test_break_ops_end_a_segment_or_are_recorded(
    device: SimulatedGraphDevice, compiled: bool, pieces: bool
) -> None:
    call = device.adopt(decoder, compiled=compiled)
    ids, positions = torch.arange(4), torch.arange(4) + 3
    breaks = Breaks(device)
    with device.session(), context() as step:
        step.recorder = breaks if pieces else None
        device.begin()
        hidden = call(ids, positions)
        last = device.end()
    assert last is not None
    assert hidden.isnan().all()
    assert WEIGHT.tolist() == [2, 4, 8]
    calls = [*breaks.calls, last.replay]
    assert len(calls) == (5 if pieces else 1)
    for _ in range(3):
        ids.copy_(torch.randint(0, 9, (4,)))
        positions.copy_(torch.randint(0, 9, (4,)))
        wanted = expected(ids, positions)
        with context():
            for run in calls:
                run()
        assert torch.equal(hidden, wanted)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_segments_depend_on_what_the_break_op_writes(
    device: SimulatedGraphDevice, compiled: bool
) -> None:
    call = device.adopt(decoder, compiled=compiled)
    ids, positions = torch.arange(4), torch.arange(4)
    breaks = Breaks(device)
    with device.session(), context() as step:
        step.recorder = breaks
        device.begin()
        hidden = call(ids, positions)
        last = device.end()
    assert last is not None
    with context():
        for index, run in enumerate([*breaks.calls, last.replay]):
            if index != 1:
                run()
    assert not torch.equal(hidden, expected(ids, positions)), "the first break op never ran"


def test_a_callable_that_takes_another_way_is_refused(device: SimulatedGraphDevice) -> None:
    rows = [4]

    def call(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = torch.empty(rows[0], 3)
        halve(torch.ones(rows[0], 3), WEIGHT, out)
        return out

    ids = torch.arange(4)
    graph, _ = record(device, lambda: device.adopt(call, compiled=True)(ids, ids))
    graph.replay()
    rows[0] = 5
    with pytest.raises(RuntimeError, match=r"\[4, 3\].*\[5, 3\]"):
        graph.replay()


def test_a_compiled_callable_sees_no_live_step_at_replay(device: SimulatedGraphDevice) -> None:
    from engine.forward_context import current

    seen: list[int] = []

    def call(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        seen.append(current().shape.num_tokens)
        return ids.float()

    ids = torch.arange(4)
    graph, _ = record(device, lambda: device.adopt(call, compiled=True)(ids, ids))
    with context():
        graph.replay()
    assert seen == [SHAPE.num_tokens, 0]


def test_a_result_that_no_operator_made_is_refused(device: SimulatedGraphDevice) -> None:
    kept = torch.ones(2)
    call = device.adopt(lambda ids, positions: kept, compiled=False)
    with device.session(), context():
        device.begin()
        with pytest.raises(RuntimeError, match="no recorded operator"):
            call(kept, kept)
