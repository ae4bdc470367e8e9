"""Paged attention equals a dense float64 reference, whatever the batch looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention import AttentionSpec
from engine.testing import AttentionConformance

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
MakeHistory = Callable[..., Any]


class TestContract(AttentionConformance):
    strategy = "sdpa"


def check(pairs: list[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype) -> None:
    for result, reference in pairs:
        torch.testing.assert_close(
            result.double(), reference, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )


def spec_of(
    heads: int = 6,
    kv_heads: int = 2,
    head_size: int = 16,
    window: int | None = None,
    cap: float | None = None,
) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, head_size, head_size**-0.5, window, cap)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shuffle", [None, 1], ids=["consecutive", "scattered"])
@pytest.mark.parametrize("cap", [None, 2.0], ids=["plain", "soft-cap"])
@pytest.mark.parametrize("window", [None, 1, 7], ids=["full", "window-1", "window-7"])
def test_mixed_steps_equal_the_dense_reference(
    history: MakeHistory,
    window: int | None,
    cap: float | None,
    shuffle: int | None,
    dtype: torch.dtype,
) -> None:
    steps = history(spec_of(window=window, cap=cap), dtype=dtype, shuffle=shuffle)
    a, b, c, d, e = (steps.add() for _ in range(5))
    check(steps.step([(a, 9), (b, 1)]), dtype)
    check(steps.step([(a, 1), (c, 13), (b, 5)], padding=2), dtype)
    check(steps.step([(d, 4), (a, 1), (b, 1), (c, 1), (e, 3)]), dtype)
    more = [steps.add() for _ in range(6)]
    check(steps.step([(s, 2 + s) for s in more]), dtype)
    decoding = [a, b, c, d, e, *more]
    for _ in range(6):
        check(steps.step([(s, 1) for s in decoding], padding=3), dtype)
    check(steps.step([(s, 1 + s % 4 // 3) for s in decoding], padding=3), dtype)


@pytest.mark.parametrize("seed", range(12))
def test_random_batches_equal_the_dense_reference(history: MakeHistory, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv_heads = int(rng.integers(1, 4))
    spec = spec_of(
        heads=kv_heads * int(rng.integers(1, 5)),
        kv_heads=kv_heads,
        head_size=int(rng.choice([8, 16, 24])),
        window=int(rng.integers(1, 40)) if rng.random() < 0.5 else None,
        cap=float(rng.uniform(1, 5)) if rng.random() < 0.3 else None,
    )
    steps = history(
        spec,
        block_size=int(rng.choice([1, 2, 16])),
        num_blocks=1024,
        shuffle=seed if rng.random() < 0.5 else None,
        seed=seed,
    )
    sequences = [steps.add() for _ in range(16)]
    for _ in range(8):
        chosen = rng.permutation(sequences)[: rng.integers(1, 17)]
        decoding = rng.random() < 0.5
        rows = [(int(s), 1 if decoding else int(rng.integers(1, 30))) for s in chosen]
        check(steps.step(rows, padding=int(rng.integers(0, 3))), torch.float32)


def test_long_runs_are_read_in_place_and_the_rest_is_gathered(history: MakeHistory) -> None:
    # Blocks of one token: prompts make one long run, later tokens interleave.
    steps = history(spec_of(), block_size=1, num_blocks=2048)
    sequences = [steps.add() for _ in range(10)]
    for length, s in zip((300, 20, 290, 3, 150, 250, 9, 300, 1, 2), sequences, strict=True):
        check(steps.step([(s, length)]), torch.float32)
    for _ in range(3):
        check(steps.step([(s, 1) for s in sequences]), torch.float32)


def test_a_chunk_under_a_mask_may_be_longer_than_one_piece(history: MakeHistory) -> None:
    for window in (None, 50):
        steps = history(spec_of(heads=2, window=window), block_size=16)
        s = steps.add()
        check(steps.step([(s, 33)]), torch.float32)
        check(steps.step([(s, 600)]), torch.float32)


def test_sequences_may_share_blocks(history: MakeHistory) -> None:
    steps = history(spec_of(), block_size=4)
    first = steps.add()
    steps.step([(first, 8)])
    for _ in range(9):
        copy = steps.sequences[steps.add()]
        source = steps.sequences[first]
        copy.table, copy.length = list(source.table), 8
        copy.keys, copy.values = list(source.keys), list(source.values)
    for _ in range(5):
        check(steps.step([(s, 1) for s in range(1, 10)]), torch.float32)


def test_the_reserved_block_and_other_owners_stay_unchanged(history: MakeHistory) -> None:
    steps = history(spec_of(), shuffle=3, fill=7.0)
    sequences = [steps.add() for _ in range(10)]
    steps.step([(s, 5 + s % 3) for s in sequences], padding=4)
    before = steps.cache.clone()
    steps.step([(s, 1 + s // 9) for s in sequences], padding=4)
    mine = {block for s in steps.sequences for block in s.table}
    others = [block for block in range(before.shape[2]) if block not in mine]
    assert 0 in others
    assert torch.equal(steps.cache[:, :, others], before[:, :, others])
    assert (steps.cache[:, :, 0] == 7.0).all()
    kept = steps.sequences[0].table[0]
    assert torch.equal(steps.cache[:, :, kept], before[:, :, kept])


def test_a_batch_without_slots_writes_nothing(history: MakeHistory) -> None:
    steps = history(spec_of(), fill=0.0)
    sequences = [steps.add() for _ in range(9)]
    steps.step([(s, 3 + s) for s in sequences])
    before = steps.cache.clone()
    inputs = steps.inputs([(s, 1 + s // 8) for s in sequences])
    inputs.slots.fill_(-1)
    inputs.host_block_tables[:] = 0
    query, key = steps.random(10, 6, 16), steps.random(10, 2, 16)
    out = torch.full_like(query, float("nan"))
    step = steps.plugin.begin_step(inputs)
    steps.plugin.forward(query, key, key, out, steps.cache, steps.spec, step)
    assert torch.equal(steps.cache, before)
    assert out.isfinite().all()


def test_a_request_with_nan_does_not_reach_its_neighbours(history: MakeHistory) -> None:
    for count in (4, 10):
        steps = history(spec_of())
        sequences = [steps.add() for _ in range(count)]
        steps.step([(s, 5) for s in sequences])
        bad = steps.sequences[sequences[2]]
        steps.cache[:, :, bad.table[0]] = float("nan")
        pairs = steps.step([(s, 1) for s in sequences])
        assert pairs.pop(2)[0].isnan().all()
        check(pairs, torch.float32)


def test_decode_reads_only_the_blocks_that_are_seen(history: MakeHistory) -> None:
    # Everything outside the window is poisoned: reading it would show.
    for count in (1, 9):
        steps = history(spec_of(window=6), block_size=2, shuffle=count)
        sequences = [steps.add() for _ in range(count)]
        steps.step([(s, 21) for s in sequences])
        for s in sequences:
            steps.cache[:, :, steps.sequences[s].table[:7]] = float("nan")
        check(steps.step([(s, 1) for s in sequences]), torch.float32)


def test_heads_may_lie_apart_in_memory(history: MakeHistory) -> None:
    # A model may hand over views: heads outside, or rows cut from a wider matrix.
    for count in (3, 9):
        steps = history(spec_of())
        plain, sequences = steps.random, [steps.add() for _ in range(count)]
        steps.step([(s, 6) for s in sequences])
        steps.random = lambda t, h, d, plain=plain: plain(h, t, d).transpose(0, 1)
        check(steps.step([(s, 1) for s in sequences]), torch.float32)
        steps.random = lambda t, h, d, plain=plain: plain(t, h + 2, d)[:, 1:-1]
        check(steps.step([(s, 1 + s % 2) for s in sequences]), torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("cap", [None, 2.0], ids=["plain", "soft-cap"])
@pytest.mark.parametrize("window", [None, 7], ids=["full", "window-7"])
def test_the_gpu_equals_the_dense_reference(
    history: MakeHistory, window: int | None, cap: float | None, dtype: torch.dtype
) -> None:
    steps = history(
        spec_of(head_size=64, window=window, cap=cap), dtype=dtype, shuffle=1, device="cuda"
    )
    sequences = [steps.add() for _ in range(10)]
    check(steps.step([(s, 1 + 3 * s) for s in sequences], padding=3), dtype)
    check(steps.step([(s, 1 + 5 * (s % 2)) for s in sequences], padding=3), dtype)
    for _ in range(5):
        check(steps.step([(s, 1) for s in sequences], padding=6), dtype)
