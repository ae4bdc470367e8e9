"""Backend `eager`: the traced graph, operator by operator."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn

from engine.ops import break_op
from engine.testing import BackendConformance
from engine_backend_eager.backend import EagerBackend


class TestContract(BackendConformance):
    strategy = "eager"


class Block(nn.Module):
    """[T, 6] -> [T, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 11), nn.Linear(11, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.nn.functional.silu(self.up(x))) + x
        return out


@pytest.mark.parametrize("dynamic", [True, False])
def test_it_compiles_what_dynamo_traces(dynamic: bool) -> None:
    block, graphs = Block(), []

    def through_the_plugin(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return EagerBackend().compile(graph, inputs, dynamic=dynamic)

    compiled = torch.compile(
        block.forward, backend=through_the_plugin, fullgraph=True, dynamic=dynamic
    )
    for rows in (2, 2, 2):
        x = torch.randn(rows, 6)
        assert torch.equal(compiled(x), block(x))
    assert len(graphs) == 1


def test_break_ops_in_a_graph_run_and_write_their_buffers() -> None:
    @break_op(f"engine_test::negate_{secrets.token_hex(4)}", mutates_args=("out",))
    def negate(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.neg(x, out=out)

    def model(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        negate(x * 2, out)
        return out + 1

    call = EagerBackend().compile(fx.symbolic_trace(model), [], dynamic=True)
    x, out = torch.randn(5), torch.empty(5)
    assert torch.equal(call(x, out), 1 - x * 2)
