"""The inputs of a step: what live rows hold, what padded rows are reset to, what never moves."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.attention import AttentionInputs
from engine.batch import BatchShape
from engine.request import EngineRequest
from engine.runtime import step_buffers
from engine.runtime.scheduler import Row
from engine.runtime.sequence import Sequence
from engine.runtime.step_buffers import StepBuffers
from engine.sampling_params import SamplingParams
from engine.strategies import ModelInputs

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


@pytest.mark.parametrize("reqs", [1, 2])
@pytest.mark.parametrize("tokens", [2, 7, 16])
def test_no_request_of_a_dummy_batch_is_longer_than_its_context(tokens: int, reqs: int) -> None:
    """A kernel would look its blocks up beyond its block table."""
    small = StepBuffers(
        max_num_tokens=16, max_num_seqs=2, max_blocks=3, block_size=2, device=torch.device("cpu")
    )
    shape = BatchShape(tokens, reqs, tokens, uniform_decode=False)
    inputs, attention = small.fill_dummy(shape)
    # A context of 5 tokens needs three blocks as well.
    assert int(attention.seq_lens.max()) <= 5
    assert int(inputs.positions.max()) < 5
    assert torch.equal(attention.query_start.diff(), attention.seq_lens)
    live = int(attention.query_start[-1])
    assert live == min(tokens, 5 * reqs)
    assert attention.shape.num_tokens == live
    assert attention.shape.max_query_len == int(attention.seq_lens.max())
    # The rest is padding, and there all the same.
    assert inputs.input_ids.shape == attention.slots.shape == (tokens,)
    assert not inputs.positions[live:].any()
    assert (attention.slots == -1).all()


def test_the_device_has_what_was_written_however_little_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Memory of its own for the device, as on a GPU.
    monkeypatch.setattr(step_buffers._Mirror, "_is_shared", staticmethod(lambda _: False))
    mine, living = buffers(), [begun() for _ in range(6)]
    copies: list[int] = []
    send = step_buffers._Mirror.send

    def counted(self: step_buffers._Mirror, rows: int) -> None:
        copies.append(rows)
        send(self, rows)

    monkeypatch.setattr(step_buffers._Mirror, "send", counted)
    fewer = 0
    for _ in range(400):
        if random.random() < 0.1:
            random.shuffle(living)
        if random.random() < 0.1:
            mine.fill_dummy(BatchShape(5, 3, 2, uniform_decode=False))
        rows = tuple(Row(sequence, 1) for sequence in living[: random.choice([3, 4, 4, 4, 4])])
        if random.random() < 0.1:
            rows = (row(list(range(8)), [4, 5], computed=1, count=random.randrange(2, 6)), *rows)
        shape = shape_of(rows)
        extra = random.choice([0, 0, 0, 1])
        padded = BatchShape(shape.num_tokens + extra, len(rows) + extra, 5, uniform_decode=False)
        tokens = torch.arange(len(rows)) if shape.uniform_decode and random.random() < 0.5 else None
        copies.clear()
        found = fill(mine, rows, shape, padded, tokens)
        fewer += len(copies) < 6
        compare(found, fill(buffers(), rows, shape, padded, tokens))
        living = [grown(sequence) for sequence in living]
    assert fewer > 100


def begun() -> Sequence:
    """Return a sequence that decodes, with room for the next token."""
    tokens = [random.randrange(99) for _ in range(random.randrange(2, 7))]
    blocks = [random.randrange(1, 90) for _ in range(len(tokens) // SIZE + 1)]
    return row(tokens, blocks, computed=len(tokens) - 1, count=1).sequence


def grown(sequence: Sequence) -> Sequence:
    """Return the sequence with a token more, or another in its place where it is full."""
    sequence.token_ids.append(random.randrange(99))
    sequence.num_computed_tokens += 1
    if len(sequence.token_ids) // SIZE >= 5:
        return begun()
    if len(sequence.token_ids) // SIZE >= len(sequence.block_ids):
        sequence.block_ids.append(random.randrange(1, 90))
    return sequence


def fill(
    into: StepBuffers,
    rows: tuple[Row, ...],
    shape: BatchShape,
    padded: BatchShape,
    tokens: torch.Tensor | None,
) -> tuple[ModelInputs, AttentionInputs]:
    if tokens is None:
        return into.fill(rows, shape, padded)
    return into.fill_ahead(rows, shape, padded, tokens)


def compare(
    found: tuple[ModelInputs, AttentionInputs], expected: tuple[ModelInputs, AttentionInputs]
) -> None:
    """Compare the device's side; columns that no block was written to mean nothing."""
    (inputs, attention), (plain, other) = found, expected
    assert torch.equal(inputs.input_ids, plain.input_ids)
    assert torch.equal(inputs.positions, plain.positions)
    for name in ("slots", "query_start", "seq_lens"):
        assert torch.equal(getattr(attention, name), getattr(other, name)), name
    needed = -(-other.seq_lens // SIZE)
    for mine, its, count in zip(
        attention.block_tables, other.block_tables, needed.tolist(), strict=True
    ):
        assert torch.equal(mine[:count], its[:count])
