"""Break ops: ordinary operators that hand themselves over to a recorder when one is in force."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from torch import fx

from engine.batch import BatchShape
from engine.forward_context import ForwardContext, forward_context
from engine.ops import attention, break_op, is_break_op, known_break_ops


@dataclass
class Written:
    """A recorder that notes what it is given, and runs it."""

    ops: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def break_at(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.ops.append((op, args))
        call(*args)


@pytest.fixture
def scale() -> tuple[str, Callable[..., None]]:
    """A fresh break op `out = x * factor`, and its name."""
    name = f"engine_test::scale_{secrets.token_hex(4)}"

    @break_op(name, mutates_args=("out",))
    def run(x: torch.Tensor, out: torch.Tensor, factor: int) -> None:
        out.copy_(x * factor)

    return name, run


def context_with(recorder: Written | None) -> ForwardContext:
    attention = cast("Any", object())  # never called here
    return ForwardContext(BatchShape.decode(1), attention, None, (), (), recorder)


def test_it_runs_directly_and_through_the_dispatcher(
    scale: tuple[str, Callable[..., None]],
) -> None:
    name, run = scale
    x, out = torch.randn(3, 4), torch.empty(3, 4)
    run(x, out, 3)
    assert torch.equal(out, x * 3)
    namespace, _, plain = name.partition("::")
    getattr(getattr(torch.ops, namespace), plain)(x, out, 5)
    assert torch.equal(out, x * 5)


def test_in_a_pass_without_a_recorder_it_just_runs(scale: tuple[str, Callable[..., None]]) -> None:
    _, run = scale
    x, out = torch.randn(5), torch.empty(5)
    with forward_context(context_with(None)):
        run(x, out, 2)
    assert torch.equal(out, x * 2)


def test_a_recorder_gets_the_operator_its_implementation_and_the_very_tensors(
    scale: tuple[str, Callable[..., None]],
) -> None:
    name, run = scale
    x, out = torch.randn(5), torch.empty(5)
    recorder = Written()
    with forward_context(context_with(recorder)):
        run(x, out, 7)
    ((op, args),) = recorder.ops
    assert op == name
    assert [a.data_ptr() for a in args[:2]] == [x.data_ptr(), out.data_ptr()]
    assert args[2] == 7
    assert torch.equal(out, x * 7)


def test_it_is_known_by_name_and_by_its_node_in_a_graph(
    scale: tuple[str, Callable[..., None]],
) -> None:
    name, run = scale
    assert name in known_break_ops()
    assert known_break_ops() == tuple(sorted(known_break_ops()))

    def model(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        run(x + 1, out, 2)
        return out - 1

    graph = fx.symbolic_trace(lambda x, out: run(x + 1, out, 2)).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    assert [is_break_op(node.target) for node in calls] == [False, True]
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(4)
    assert torch.equal(compiled(x), model(x))


def test_other_operators_are_no_break_ops() -> None:
    for target in (torch.ops.aten.mm.default, torch.ops.aten.mm, torch.relu, len):
        assert not is_break_op(target)


def test_it_declares_what_it_writes_so_that_functionalization_is_right(
    scale: tuple[str, Callable[..., None]],
) -> None:
    name, _ = scale
    namespace, _, plain = name.partition("::")
    overload = getattr(getattr(torch.ops, namespace), plain).default
    torch.library.opcheck(overload, (torch.randn(3), torch.empty(3), 2))


def test_attention_is_a_break_op_and_needs_a_running_pass() -> None:
    assert "engine::attention" in known_break_ops()
    heads = torch.randn(2, 1, 4)
    with pytest.raises(RuntimeError, match="no forward context"):
        attention(heads, heads, heads, 0)
