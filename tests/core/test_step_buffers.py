"""The inputs of a step: what live rows hold, what padded rows are reset to, what never moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.batch import BatchShape
from engine.request import EngineRequest
from engine.runtime.scheduler import Row
from engine.runtime.sequence import Sequence
from engine.runtime.step_buffers import StepBuffers
from engine.sampling_params import SamplingParams

SIZE = 4


def buffers() -> StepBuffers:
    return StepBuffers(
        max_num_tokens=16,
        max_num_seqs=6,
        max_blocks=5,
        block_size=SIZE,
        device=torch.device("cpu"),
    )


def row(tokens: list[int], blocks: list[int], computed: int, count: int) -> Row:
    request = EngineRequest(request_id="r", prompt_token_ids=tokens, params=SamplingParams())
    sequence = Sequence(request)
    sequence.block_ids, sequence.num_computed_tokens = blocks, computed
    return Row(sequence, count)


def shape_of(rows: tuple[Row, ...]) -> BatchShape:
    counts = [r.num_tokens for r in rows]
    return BatchShape(sum(counts), len(counts), max(counts), uniform_decode=max(counts) == 1)


DECODE = row([10, 11, 12, 13, 14, 15], [7, 3], computed=5, count=1)
CHUNK = row([20, 21, 22, 23, 24, 25, 26], [2, 9], computed=2, count=4)


def test_live_rows_hold_ids_positions_slots_and_tables() -> None:
    rows = (DECODE, CHUNK)
    shape = shape_of(rows)
    inputs, attention = buffers().fill(rows, shape, shape)
    assert inputs.input_ids.tolist() == [15, 22, 23, 24, 25]
    assert inputs.positions.tolist() == [5, 2, 3, 4, 5]
    # block * size + offset, block by block of each row
    assert attention.slots.tolist() == [3 * SIZE + 1, 2 * SIZE + 2, 2 * SIZE + 3, 36, 37]
    assert attention.query_start.tolist() == [0, 1, 5]
    assert attention.seq_lens.tolist() == [6, 6]
    assert attention.block_tables[:, :2].tolist() == [[7, 3], [2, 9]]
    assert attention.shape == shape


def test_padded_rows_are_reset_at_every_step_whatever_was_there_before() -> None:
    mine = buffers()
    full = tuple(row(list(range(n, n + 3)), [n + 1], computed=2, count=1) for n in range(6))
    mine.fill(full, shape_of(full), shape_of(full))
    padded = BatchShape(4, 4, 1, uniform_decode=True)
    inputs, attention = mine.fill((DECODE,), shape_of((DECODE,)), padded)
    assert inputs.input_ids.tolist() == [15, 0, 0, 0]
    assert inputs.positions.tolist() == [5, 0, 0, 0]
    assert attention.slots.tolist() == [13, -1, -1, -1]
    assert attention.seq_lens.tolist() == [6, 0, 0, 0]
    assert attention.query_start.tolist() == [0, 1, 1, 1, 1]
    assert not attention.block_tables[1:].any()
    assert attention.host_seq_lens.tolist() == [6]


def test_the_tensors_of_every_step_are_views_of_the_same_memory() -> None:
    mine = buffers()
    shape = shape_of((DECODE,))
    first, _ = mine.fill((DECODE,), shape, shape)
    second, _ = mine.fill((CHUNK,), shape_of((CHUNK,)), shape_of((CHUNK,)))
    dummy, _ = mine.fill_dummy(BatchShape(3, 3, 1, uniform_decode=True))
    addresses = {i.input_ids.data_ptr() for i in (first, second, dummy)}
    assert len(addresses) == 1


def test_a_dummy_batch_writes_to_no_block_and_has_the_shape_asked_for() -> None:
    shape = BatchShape(7, 3, 7, uniform_decode=False)
    inputs, attention = buffers().fill_dummy(shape)
    assert inputs.input_ids.shape == (7,)
    assert (attention.slots == -1).all()
    assert attention.query_start.tolist() == [0, 2, 4, 7]
    assert attention.seq_lens.tolist() == [2, 2, 3]
    assert inputs.positions.tolist() == [0, 1, 0, 1, 0, 1, 2]
    assert np.array_equal(attention.host_block_tables, np.zeros((3, 5)))


@pytest.mark.parametrize("tokens", [1, 7, 16])
def test_dummy_positions_are_within_the_context_however_many_tokens(tokens: int) -> None:
    small = StepBuffers(
        max_num_tokens=16, max_num_seqs=2, max_blocks=3, block_size=2, device=torch.device("cpu")
    )
    inputs, _ = small.fill_dummy(BatchShape(tokens, 1, tokens, uniform_decode=False))
    # A context of 5 tokens needs three blocks as well.
    assert int(inputs.positions.max()) < 5
