"""The default rule for capture sizes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from engine.registry import Registry
from engine_capture_sizes_default.policy import DefaultSizes


def sizes(max_size: int, max_num_seqs: int, max_num_tokens: int = 8192) -> list[int]:
    limits = {
        "max_size": max_size,
        "max_num_seqs": max_num_seqs,
        "max_num_tokens": max_num_tokens,
    }
    return list(DefaultSizes().sizes(limits))


def test_the_usual_limits() -> None:
    expected = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    assert sizes(512, 256) == expected


@pytest.mark.parametrize(
    ("max_size", "max_num_seqs", "expected"),
    [(1, 1, [1]), (3, 3, [1, 2, 3]), (8, 6, [1, 2, 4, 6, 8]), (20, 40, [1, 2, 4, 8, 16, 20])],
)
def test_small_limits(max_size: int, max_num_seqs: int, expected: list[int]) -> None:
    assert sizes(max_size, max_num_seqs) == expected


def test_limits_are_kept_full_batches_are_exact_and_padding_is_bounded() -> None:
    for _ in range(200):
        tokens = random.randrange(1, 4000)
        top = random.randrange(1, tokens + 1)
        seqs = random.randrange(1, 1000)
        found = sizes(top, seqs, tokens)
        assert found == sorted(set(found))
        assert found[0] == 1
        assert found[-1] == top
        assert seqs > top or seqs in found
        gaps = [b - a for a, b in pairwise(found)]
        assert all(gap <= 16 for gap in gaps)
        assert all(gap <= 8 for low, gap in zip(found, gaps, strict=False) if low < 256)


def test_it_is_registered_under_its_name() -> None:
    assert Registry().load("capture_sizes", "default") is DefaultSizes
