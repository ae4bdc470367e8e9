"""What is done to logits before a token is chosen, and what is reported of the result."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from engine.request import EngineRequest, PositionLogprobs
from engine.runtime.sequence import Sequence
from engine.testing.sampling import VOCAB_SIZE, peaked, sample_one, sampler, sequence

# Bias, penalties, forbidden tokens


def adjusted_by_hand(logits: torch.Tensor, one: Sequence) -> torch.Tensor:
    params, result = one.request.params, logits.double().clone()
    for token, bias in (params.logit_bias or {}).items():
        result[token] += bias
    for token in set(one.token_ids):
        if params.repetition_penalty != 1:
            penalty = params.repetition_penalty
            result[token] = (
                result[token] / penalty if result[token] > 0 else result[token] * penalty
            )
    for token, count in Counter(one.output_token_ids).items():
        result[token] -= params.presence_penalty + params.frequency_penalty * count
    return result


def test_bias_and_penalties_give_the_log_probabilities_of_their_definitions() -> None:
    shared = sampler()
    rows = [
        sequence(
            prompt=random.choices(range(VOCAB_SIZE), k=80),
            temperature=0,
            logprobs=20,
            repetition_penalty=random.choice([1.0, 0.7, 1.4]),
            presence_penalty=random.choice([0.0, random.uniform(-2, 2)]),
            frequency_penalty=random.choice([0.0, random.uniform(-2, 2)]),
            logit_bias={random.randrange(VOCAB_SIZE): random.uniform(-9, 9) for _ in range(5)},
        )
        for _ in range(6)
    ]
    for _ in range(90):  # more different tokens than the counts have room for at first
        logits = torch.randn(len(rows), VOCAB_SIZE)
        sampled = shared.sample(logits, rows)
        for row, one, token in zip(logits, rows, sampled, strict=True):
            expected = adjusted_by_hand(row, one).log_softmax(-1)
            assert token.logprobs is not None
            for entry in token.logprobs:
                assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-4)
            one.append(token.token_id)


def test_presence_and_frequency_count_the_output_only_and_repetition_the_prompt_too() -> None:
    logits = torch.zeros(VOCAB_SIZE)
    logits[7], logits[8] = 2.0, 1.5
    cases: list[tuple[dict[str, Any], int]] = [
        ({"presence_penalty": 2.0}, 7),
        ({"frequency_penalty": 2.0}, 7),
        ({"repetition_penalty": 2.0}, 8),
    ]
    for penalty, expected in cases:
        assert (
            sample_one(logits, sequence(prompt=[7], temperature=0, **penalty)).token_id == expected
        )
    assert (
        sample_one(logits, sequence(output=[7], temperature=0, presence_penalty=1.0)).token_id == 8
    )


def test_rows_without_penalties_are_not_touched_by_rows_that_have_them() -> None:
    logits = peaked(3)
    plain = [t.token_id for t in sampler().sample(logits, [sequence(temperature=0)] * 3)]
    rows = [
        sequence(temperature=0),
        sequence(temperature=0, prompt=list(range(VOCAB_SIZE)), repetition_penalty=10.0),
        sequence(temperature=0),
    ]
    got = [t.token_id for t in sampler().sample(logits, rows)]
    assert (got[0], got[2]) == (plain[0], plain[2])


def test_a_forgotten_request_leaves_nothing_behind() -> None:
    shared, logits = sampler(), peaked()
    for _ in range(3):
        first = sequence(temperature=0, presence_penalty=2.0, output=[5] * 4)
        fresh = sequence(temperature=0, presence_penalty=2.0)
        reused = EngineRequest(
            request_id=first.request.request_id,
            prompt_token_ids=[1],
            params=fresh.request.params,
        )
        shared.sample(logits[None], [first])
        shared.forget(first.request.request_id)
        assert shared.sample(logits[None], [Sequence(reused)]) == shared.sample(
            logits[None], [fresh]
        )
        shared.forget("never seen")


def test_a_new_request_with_the_id_of_one_that_was_never_forgotten_is_its_own() -> None:
    shared, logits = sampler(), torch.zeros(VOCAB_SIZE)
    logits[7], logits[8] = 2.0, 1.5
    old = sequence(temperature=0, prompt=[7], repetition_penalty=2.0)
    assert shared.sample(logits[None], [old])[0].token_id == 8
    request = EngineRequest(
        request_id=old.request.request_id,
        prompt_token_ids=[1],
        params=old.request.params,
    )
    assert shared.sample(logits[None], [Sequence(request)])[0].token_id == 7


def test_end_and_stop_tokens_are_forbidden_until_min_tokens() -> None:
    logits = torch.zeros(VOCAB_SIZE)
    logits[10], logits[20], logits[30], logits[40] = 50.0, 40.0, 30.0, 20.0
    params: dict[str, Any] = {
        "temperature": 0,
        "min_tokens": 2,
        "stop_token_ids": [20],
        "logit_bias": {10: 100.0},  # no bias brings a forbidden token back
    }
    one = sequence(ends=[10, VOCAB_SIZE + 5], logprobs=3, **params)
    for expected in (30, 30, 10):
        token = sample_one(logits, one)
        assert token.token_id == expected
        one.append(token.token_id)
    ignoring = sequence(ends=[10], ignore_eos=True, **params)
    assert sample_one(logits, ignoring).token_id == 10


def test_a_drawn_token_is_never_a_forbidden_one() -> None:
    logits = torch.zeros(200, VOCAB_SIZE)
    ends = list(range(1, VOCAB_SIZE))
    rows = [sequence(ends=ends, min_tokens=1, top_p=random.choice([0.5, 1.0])) for _ in range(200)]
    assert {t.token_id for t in sampler().sample(logits, rows)} == {0}


# Log-probabilities


def entries(position: PositionLogprobs | None) -> list[tuple[int, float, int]]:
    assert position is not None
    return [(entry.token_id, entry.logprob, entry.rank) for entry in position]


def test_log_probabilities_are_of_the_distribution_before_temperature_and_filters() -> None:
    logits = peaked(5)
    expected = logits.double().log_softmax(-1)
    rows = [sequence(temperature=3.0, top_k=2, logprobs=count) for count in (0, 1, 4, 20, 4)]
    for row, one, token in zip(expected, rows, sampler().sample(logits, rows), strict=True):
        count = one.request.params.logprobs
        assert count is not None
        order = row.argsort(descending=True).tolist()
        chosen, *top = entries(token.logprobs)
        assert chosen[0] == token.token_id
        assert chosen[2] == order.index(token.token_id) + 1
        assert [(id_, rank) for id_, _, rank in top] == [(order[i], i + 1) for i in range(count)]
        for id_, value, _ in (chosen, *top):
            assert value == pytest.approx(float(row[id_]), abs=1e-4)


def test_equal_tokens_have_the_ranks_of_their_ids() -> None:
    logits = torch.randn(VOCAB_SIZE) - 9
    equal = sorted(random.sample(range(VOCAB_SIZE), 20))
    logits[equal] = 0.0
    token = sample_one(logits, sequence(logprobs=8, seed=11, top_p=0.9))
    chosen, *top = entries(token.logprobs)
    assert [(id_, rank) for id_, _, rank in top] == [(equal[i], i + 1) for i in range(8)]
    assert chosen[2] == equal.index(chosen[0]) + 1


def test_forbidden_tokens_are_no_alternatives() -> None:
    one = sequence(ends=list(range(2, VOCAB_SIZE)), min_tokens=1, logprobs=20)
    assert {id_ for id_, _, _ in entries(sample_one(peaked(), one).logprobs)} == {0, 1}


def test_prompt_log_probabilities_are_of_the_given_tokens_for_any_number_of_positions() -> None:
    logits = peaked(300).bfloat16()
    targets = [random.randrange(VOCAB_SIZE) for _ in range(300)]
    expected = logits.double().log_softmax(-1)
    got = sampler().prompt_logprobs(logits, targets, 2)
    assert len(got) == 300
    for row, target, position in zip(expected, targets, got, strict=True):
        chosen, *top = entries(position)
        assert chosen[0] == target
        assert chosen[2] == 1 + int((row > row[target]).sum()) + int(
            (row[:target] == row[target]).sum()
        )
        assert [rank for _, _, rank in top] == [1, 2]
        assert top[0][1] == pytest.approx(float(row.max()), abs=1e-3)
    assert sampler().prompt_logprobs(logits[:0], [], 2) == []
