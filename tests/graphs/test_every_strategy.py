"""What the strategies of this repository keep beyond the contract (see their own suites)."""

from __future__ import annotations

import pytest
import torch

from engine.batch import BatchShape
from engine.testing.graph_modes import GraphBench, prefilled

RECORDING = ["full", "full_and_piecewise", "full_decode_only", "piecewise"]


@pytest.mark.parametrize("name", RECORDING)
def test_inputs_elsewhere_or_of_another_length_are_refused(name: str) -> None:
    bench = prefilled(GraphBench(name, sizes=(2, 4)), [5, 3])
    shape = BatchShape.decode(2)
    decision = bench.strategy.dispatch(shape)
    inputs, attention = bench.buffers.fill_dummy(shape)
    longer, _ = bench.buffers.fill_dummy(BatchShape.decode(4))
    moved = type(inputs)(inputs.input_ids.clone(), inputs.positions)
    with torch.inference_mode(), bench.context(shape, attention):
        for wrong in (longer, moved):
            with pytest.raises(RuntimeError, match=r"graph of 2 tokens reads static buffers"):
                bench.strategy.run(decision, wrong)
        bench.strategy.run(decision, inputs)
