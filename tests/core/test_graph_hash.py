"""Equal graphs have one hash, different ones two, and what can't be told has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from engine.graph_hash import graph_hash
from engine.token_range import Shapes, TokenRange


def graph(
    function: Callable[..., Any], *inputs: Any, names: tuple[str, ...] = ()
) -> fx.GraphModule:
    """Trace a function and note its example inputs."""
    module = fx.symbolic_trace(function)
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.meta["example_value"] = value
    for node, name in zip(module.graph.find_nodes(op="placeholder"), names, strict=False):
        node._rename(name)
    return module


def ones(*sizes: Any, **settings: Any) -> torch.Tensor:
    return torch.ones(*sizes, **settings)


X, W = ones(3, 4), ones(4, 4)


def layer(x: Any, w: Any) -> Any:
    return (F.silu(F.linear(x, w)) * 2,)


def test_names_of_parameters_do_not_matter() -> None:
    one = graph(layer, X, W, names=("x", "layer_0_weight"))
    two = graph(layer, X, W + 1, names=("hidden", "layer_17_weight"))
    assert graph_hash(one) == graph_hash(two) is not None


DIFFERENT: dict[str, fx.GraphModule] = {
    "another operator": graph(lambda x, w: (F.gelu(F.linear(x, w)) * 2,), X, W),
    "another constant": graph(lambda x, w: (F.silu(F.linear(x, w)) * 3,), X, W),
    "a constant of another type": graph(lambda x, w: (F.silu(F.linear(x, w)) * 2.0,), X, W),
    "a keyword": graph(lambda x, w: (F.silu(F.linear(x, w), inplace=True) * 2,), X, W),
    "arguments the other way": graph(lambda x, w: (F.silu(F.linear(w, x)) * 2,), X, W),
    "another result": graph(lambda x, w: (F.silu(F.linear(x, w)),), X, W),
    "a method for a function": graph(lambda x, w: (F.silu(x.matmul(w)) * 2,), X, W),
    "another size": graph(layer, ones(5, 4), W),
    "another stride": graph(layer, ones(4, 3).t(), W),
    "another dtype": graph(layer, X.bfloat16(), W),
    "another device": graph(layer, X.to("meta"), W),
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_whatever_a_compiler_can_see_matters(other: fx.GraphModule) -> None:
    assert graph_hash(other) not in (graph_hash(graph(layer, X, W)), None)


def test_symbolic_sizes_are_equal_across_environments_and_differ_from_numbers() -> None:
    hashes = []
    for _ in range(2):
        shapes = Shapes(TokenRange(1, 64))
        with shapes.mode:
            hashes.append(graph_hash(graph(layer, torch.empty(shapes.num_tokens, 4), W)))
    assert hashes[0] == hashes[1] != graph_hash(graph(layer, ones(8, 4), W))


def test_a_multiple_of_the_number_of_tokens_is_another_size() -> None:
    shapes = Shapes(TokenRange(1, 64))
    with shapes.mode:
        once, twice = torch.empty(shapes.num_tokens, 4), torch.empty(shapes.num_tokens * 2, 4)
        both = graph(lambda x, y: (x, y), once, twice)
        same = graph(lambda x, y: (x, y), once, once)
    assert graph_hash(both) != graph_hash(same)


def test_the_contents_of_a_constant_tensor_matter() -> None:
    class Adds(torch.nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.register_buffer("table", torch.full((4,), value))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x + self.get_buffer("table"),)

    def hashed(value: float) -> str | None:
        module = fx.symbolic_trace(Adds(value))
        module.graph.find_nodes(op="placeholder")[0].meta["example_value"] = X
        return graph_hash(module)

    assert hashed(1.0) == hashed(1.0) != hashed(2.0)


def factor(x: Any) -> Any:
    return x * 2


fx.wrap("factor")


def test_the_code_of_a_foreign_function_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    def calls(function: Callable[..., Any]) -> str | None:
        made = fx.Graph()
        x = made.placeholder("x")
        x.meta["example_value"] = X
        made.output((made.call_function(function, (x,)),))
        return graph_hash(fx.GraphModule({}, made))

    before = calls(factor)
    monkeypatch.setattr(factor, "__code__", (lambda x: x * 3).__code__)
    assert calls(factor) not in (before, None)
    shift = 3
    assert calls(lambda x: x + shift) is None


def test_what_cannot_be_described_has_no_hash() -> None:
    unknown = graph(lambda x, w: (F.linear(x, w),), X, W)
    next(n for n in unknown.graph.nodes if n.op == "call_function").kwargs = {"bias": object()}
    assert graph_hash(unknown) is None
    module = graph(torch.nn.Sequential(torch.nn.Linear(4, 4)), X)
    assert graph_hash(module) is None
