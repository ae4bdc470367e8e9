"""Which sizes get a graph: what a user names is taken or refused, never quietly changed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine.capture_sizes import resolve_capture_sizes
from engine.errors import ResolutionError
from engine.strategies import CaptureSizePolicy


class Everything(CaptureSizePolicy):
    NAME = "everything"
    SUMMARY = "each size"

    def sizes(self, limits: Mapping[str, int]) -> Sequence[int]:
        return range(1, limits["max_size"] + 1)


class Fixed(CaptureSizePolicy):
    NAME = "fixed"
    SUMMARY = "what a test says"

    def __init__(self, answer: list[int]) -> None:
        super().__init__()
        self.answer = answer

    def sizes(self, limits: Mapping[str, int]) -> Sequence[int]:
        return self.answer


def resolve(
    asked: tuple[int, ...] | None = None, max_size: int | None = None, **limits: Any
) -> tuple[int, ...]:
    values: dict[str, Any] = {
        "max_num_seqs": 256,
        "max_num_tokens": 8192,
        "policy": Everything(),
        **limits,
    }
    return resolve_capture_sizes(asked, max_size, **values).sizes


def test_a_list_is_sorted_and_freed_of_duplicates_and_says_so() -> None:
    found = resolve_capture_sizes(
        (4, 2, 2), None, max_num_seqs=8, max_num_tokens=64, policy=Everything()
    )
    assert found.sizes == (2, 4)
    assert found.reason == "asked for; sorted, duplicates dropped"


def test_a_tidy_list_is_taken_as_it_is_whatever_the_defaults_are() -> None:
    sizes = tuple(sorted(random.sample(range(1, 8192), 20)))
    found = resolve_capture_sizes(
        sizes, None, max_num_seqs=8, max_num_tokens=8192, policy=Fixed([1])
    )
    assert found.sizes == sizes
    assert found.reason == "asked for"


@pytest.mark.parametrize(
    ("asked", "max_size", "said"),
    [
        ((4, 2, 2, 9000), None, r"9000 can never be used.*max_num_batched_tokens=8192"),
        ((9000,), None, r"9000 can never be used"),
        ((), None, r"cudagraph_capture_sizes=\[\].*at least one size"),
        ((0, 4), None, "0 is no number of tokens"),
        ((-3,), None, "-3 is no number of tokens"),
        ((1, 2), 4, r"ends at 2 but max_cudagraph_capture_size=4; give one"),
        (None, 8193, r"max_cudagraph_capture_size=8193.*max_num_batched_tokens=8192"),
    ],
)
def test_what_cant_be_is_refused(
    asked: tuple[int, ...] | None, max_size: int | None, said: str
) -> None:
    with pytest.raises(ResolutionError, match=said):
        resolve(asked, max_size)


def test_a_list_and_the_maximum_that_it_ends_at_agree() -> None:
    assert resolve((1, 2), 2) == (1, 2)


@pytest.mark.parametrize("max_size", [1, 3, 100, 8192])
def test_the_maximum_is_the_last_size_exactly(max_size: int) -> None:
    assert resolve(max_size=max_size)[-1] == max_size


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_tokens", "top"),
    [(256, 8192, 512), (1000, 8192, 1000), (256, 300, 300), (1, 16, 16)],
)
def test_the_default_maximum_follows_the_limits(
    max_num_seqs: int, max_num_tokens: int, top: int
) -> None:
    assert resolve(max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens)[-1] == top


@pytest.mark.parametrize("answer", [[], [0, 1], [2, 1], [1, 1], [1, 9000]])
def test_a_policy_that_proposes_nonsense_is_named(answer: list[int]) -> None:
    with pytest.raises(ResolutionError, match="capture_size_policy=fixed"):
        resolve(policy=Fixed(answer))
