"""Greedy tokens from a recorded head equal those of the logits."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.request import EngineRequest
from engine.runtime.greedy_head import GreedyHead
from engine.runtime.sampler import Sampler
from engine.runtime.sequence import Sequence
from engine.runtime.simulated_graphs import SimulatedGraphDevice
from engine.sampling_params import SamplingParams

VOCAB, PADDED, WIDTH = 90, 96, 8


@pytest.fixture
def head() -> GreedyHead:
    torch.manual_seed(0)
    weight = torch.randn(PADDED, WIDTH)
    made = GreedyHead(lambda x: x @ weight.T, VOCAB, torch.empty(6, WIDTH), SimulatedGraphDevice())
    with torch.inference_mode():
        made.record((1, 4, 2, 6))
    return made


def wanted(head: GreedyHead, hidden: torch.Tensor) -> torch.Tensor:
    return head._compute_logits(hidden)[:, :VOCAB].argmax(-1)


def test_any_number_of_rows_in_any_order_gets_its_tokens(head: GreedyHead) -> None:
    with torch.inference_mode():
        for rows in random.choices(range(1, 7), k=30):
            hidden = torch.randn(rows, WIDTH)
            tokens, numbers = head.run(hidden)
            assert torch.equal(tokens, wanted(head, hidden))
            assert torch.equal(numbers[0].long(), tokens)
            assert torch.allclose(
                numbers[1].float(), head._compute_logits(hidden)[:, :VOCAB].amax(-1)
            )


def test_rows_beyond_the_recorded_ones_are_not_covered(head: GreedyHead) -> None:
    assert [head.covers(rows) for rows in (1, 3, 6, 7)] == [True, True, True, False]


def test_nan_in_one_row_reaches_no_other(head: GreedyHead) -> None:
    with torch.inference_mode():
        hidden = torch.randn(3, WIDTH)
        expected = wanted(head, hidden)
        head.run(torch.full((6, WIDTH), float("nan")))
        broken = hidden.clone()
        broken[1] = float("nan")
        tokens, numbers = head.run(broken)
        assert torch.equal(tokens[[0, 2]], expected[[0, 2]])
        assert bool(numbers[1, 1].isnan())


def test_it_is_used_only_where_the_likeliest_token_is_all_that_counts() -> None:
    sampler = Sampler(VOCAB, "cpu", 0)

    def sequence(name: str, **params: Any) -> Sequence:
        made = Sequence(
            EngineRequest(request_id=name, prompt_token_ids=[1], params=SamplingParams(**params))
        )
        made.token_ids.append(2)
        return made

    def never() -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("it was asked")

    def choose() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([5]), torch.tensor([[5.0], [1.5]], dtype=torch.float64)

    cases: list[dict[str, Any]] = [
        {"temperature": 1},
        {"temperature": 0, "logprobs": 1},
        {"temperature": 0, "logit_bias": {3: 1.0}},
    ]
    for number, params in enumerate(cases):
        assert sampler.start_greedy(never, [sequence(str(number), **params)]) is None
    plain = sampler.start_greedy(choose, [sequence("plain", temperature=0)])
    assert plain is not None
    assert [token.token_id for token in plain.read()] == [5]
    nan = torch.tensor([[5.0], [float("nan")]], dtype=torch.float64)
    failed = sampler.start_greedy(lambda: (torch.tensor([5]), nan), [sequence("n", temperature=0)])
    assert failed is not None
    assert "NaN" in str(failed.read()[0].error)
