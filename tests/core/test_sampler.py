"""The sampler: what is drawn, that draws repeat, and that rows don't disturb rows."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
import torch

from engine.runtime.counter_rng import child_seed, derive, uniforms
from engine.runtime.sampler import SampledToken, Sampler
from engine.runtime.sequence import Sequence
from engine.sampling_params import SamplingParams
from engine.testing.sampling import VOCAB_SIZE, peaked, sample_one, sampler, sequence


def kept_by_hand(logits: torch.Tensor, params: SamplingParams) -> list[int]:
    """The token ids that may be drawn, by the definition of each filter."""
    scaled = (logits - logits.max()) / params.temperature  # float32, as rounding decides ties
    order = sorted(range(len(scaled)), key=lambda i: (-float(scaled[i]), i))
    if params.top_k > 0:
        order = order[: params.top_k]
    weights = [math.exp(float(scaled[i] - scaled[order[0]])) for i in order]
    total, reached, kept = sum(weights), 0.0, []
    for token, weight in zip(order, weights, strict=True):
        if reached >= params.top_p * total:
            break
        reached += weight
        if weight >= params.min_p:
            kept.append(token)
    return sorted(kept)


def draw_by_hand(logits: torch.Tensor, params: SamplingParams, uniform: float) -> int:
    """Inverse transform in the order of token ids."""
    kept = kept_by_hand(logits, params)
    scaled = (logits - logits.max()) / params.temperature
    weights = [math.exp(float(scaled[i])) for i in kept]
    target, reached = uniform * sum(weights), 0.0
    for token, weight in zip(kept, weights, strict=True):
        reached += weight
        if reached > target:
            return token
    raise AssertionError("the uniform number is below 1")


FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.8},
    {"top_k": 600, "top_p": 0.5, "min_p": 0.01},
    {"top_k": 10_000},
    {"top_k": -1, "top_p": 0.3},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("spread", [0.1, 4.0], ids=["flat", "peaked"])
def test_the_drawn_token_is_the_inverse_transform_of_what_the_filters_keep(
    filters: dict[str, Any], spread: float
) -> None:
    params = {"temperature": random.uniform(0.3, 2.0), "seed": random.getrandbits(40), **filters}
    logits = torch.randn(6, VOCAB_SIZE) * spread
    rows = [sequence(**params, output=[3] * i) for i in range(6)]
    keys = [derive(int(params["seed"]), 0)] * 6
    numbers = uniforms(keys, list(range(6))).tolist()
    expected = [
        draw_by_hand(row, rows[0].request.params, number)
        for row, number in zip(logits, numbers, strict=True)
    ]
    assert [token.token_id for token in sampler().sample(logits, rows)] == expected


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    small = Sampler(4, "cpu", 0)
    for top_p, kept in [
        (0.5, {0}),
        (0.51, {0, 1}),
        (0.8, {0, 1}),
        (0.81, {0, 1, 2}),
        (1.0, {0, 1, 2, 3}),
    ]:
        rows = [sequence(top_p=top_p - 1e-7 if top_p < 1 else 1.0, seed=i) for i in range(400)]
        tokens = small.sample(logits.expand(400, -1), rows)
        assert {token.token_id for token in tokens} == kept


@pytest.mark.parametrize(
    "filters", [{"top_k": 5}, {"top_p": 5 / VOCAB_SIZE}, {"top_k": 5, "min_p": 1.0}]
)
def test_among_equal_tokens_the_lowest_ids_stay(filters: dict[str, Any]) -> None:
    logits = torch.zeros(300, VOCAB_SIZE)
    rows = [sequence(seed=i, **filters) for i in range(300)]
    assert {token.token_id for token in sampler().sample(logits, rows)} == {0, 1, 2, 3, 4}


def test_draws_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.6, 0.25, 0.1, 0.05])
    small = Sampler(4, "cpu", random.getrandbits(32))
    rows = [sequence() for _ in range(5_000)]
    counts = Counter(t.token_id for t in small.sample(probabilities.log().expand(5_000, -1), rows))
    chi_square = sum(
        (counts[i] - 5_000 * float(p)) ** 2 / (5_000 * float(p))
        for i, p in enumerate(probabilities)
    )
    assert chi_square < 27.9  # 3 degrees of freedom: exceeded once in 260 000 runs


def test_greedy_takes_the_likeliest_token_and_the_lowest_id_of_equals() -> None:
    logits = peaked(9)
    logits[:, 100] = logits[:, 50] = logits.max() + 1
    rows = [sequence(temperature=0) for _ in range(9)]
    assert sampler().sample(logits, rows) == [SampledToken(50)] * 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_gives_what_its_float32_value_gives_and_is_not_changed(
    dtype: torch.dtype,
) -> None:
    logits = peaked(8).to(dtype)
    before = logits.clone()
    params: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 1},
        {"seed": 2, "top_p": 0.9, "repetition_penalty": 1.3},
        {"temperature": 0, "logit_bias": {3: 50.0}, "logprobs": 2},
    ] * 2
    got = sampler().sample(logits, [sequence(**p) for p in params])
    assert got == sampler().sample(logits.float(), [sequence(**p) for p in params])
    assert torch.equal(logits, before)


def test_logits_beyond_the_vocabulary_are_left_out() -> None:
    logits = torch.cat([peaked(2), torch.full((2, 36), 1e4)], dim=1)
    rows = [sequence(temperature=0, logprobs=3), sequence(seed=1)]
    for token in sampler().sample(logits, rows):
        assert token.token_id < VOCAB_SIZE
        assert all(entry.token_id < VOCAB_SIZE for entry in token.logprobs or [])


# Seeds


def run(own: Sequence, logits: torch.Tensor, beside: list[Sequence], at: int) -> list[int]:
    """Sample every row of logits for one sequence, with neighbours that have random logits."""
    shared = sampler(seed=random.getrandbits(16))
    for row in logits:
        rows = [*beside[:at], own, *beside[at:]]
        batch = torch.stack([*peaked(at), row, *peaked(len(beside) - at)])
        for sampled, one in zip(shared.sample(batch, rows), rows, strict=True):
            one.append(sampled.token_id)
    return own.output_token_ids


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.95}, {"top_k": 40}, {"min_p": 0.02}], ids=str)
@pytest.mark.parametrize("spread", [0.05, 3.0], ids=["flat", "peaked"])
def test_a_seeded_request_repeats_whatever_runs_beside_it(
    filters: dict[str, Any], spread: float
) -> None:
    seed = random.getrandbits(63)
    logits = (torch.randn(12, VOCAB_SIZE) * spread).bfloat16().float()

    def own() -> Sequence:
        return sequence(seed=seed, **filters)

    alone = run(own(), logits, [], 0)
    beside_unseeded = run(own(), logits, [sequence(), sequence(temperature=0)], 1)
    beside_itself = run(own(), logits, [own(), own()], 2)
    others = [
        sequence(top_k=400, logprobs=3),
        sequence(repetition_penalty=2.0),
        sequence(top_p=0.1),
    ]
    assert alone == beside_unseeded == beside_itself == run(own(), logits, others, 2)
    assert len(set(alone)) > 1


def test_a_preempted_sequence_draws_and_penalises_as_if_it_had_not_been() -> None:
    params: dict[str, Any] = {"seed": 5, "repetition_penalty": 1.5, "frequency_penalty": 0.5}
    logits = peaked(10)
    undisturbed = run(sequence(**params), logits, [], 0)
    shared, one = sampler(), sequence(**params)
    for index, row in enumerate(logits):
        if index == 4:
            one.restart()
        one.append(shared.sample(row[None], [one])[0].token_id)
    assert one.output_token_ids == undisturbed


def test_unseeded_requests_differ_from_each_other_and_repeat_with_the_engine_seed() -> None:
    logits = torch.zeros(40, VOCAB_SIZE)
    first = [t.token_id for t in sampler(1).sample(logits, [sequence() for _ in range(40)])]
    again = [t.token_id for t in sampler(1).sample(logits, [sequence() for _ in range(40)])]
    other = [t.token_id for t in sampler(2).sample(logits, [sequence() for _ in range(40)])]
    assert first == again != other
    assert len(set(first)) > 30


def test_seeds_of_completions_are_distinct_and_the_first_keeps_the_seed() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), random.getrandbits(62)]
    derived = [child_seed(seed, index) for seed in seeds for index in range(64)]
    assert len(set(derived)) == len(derived)
    assert all(seed is not None and -(2**63) <= seed < 2**63 for seed in derived)
    assert [child_seed(seed, 0) for seed in seeds] == seeds
    assert child_seed(None, 3) is None
    assert derived == [child_seed(seed, index) for seed in seeds for index in range(64)]


def test_uniform_numbers_are_uniform_and_uncorrelated_along_the_sequence_and_across_seeds() -> None:
    for keys, counters in [
        ([derive(9)] * 4000, range(4000)),
        ([derive(i) for i in range(4000)], [0] * 4000),
    ]:
        numbers = torch.from_numpy(uniforms(keys, list(counters)))
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert abs(float(numbers.mean()) - 0.5) < 0.03
        neighbours = torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))[0, 1]
        assert abs(float(neighbours)) < 0.1


# Numbers that break samplers


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "beside", [{"temperature": 0}, {"seed": 3, "top_p": 0.9}, {"seed": 3}], ids=str
)
def test_a_row_without_a_choice_is_an_error_of_that_row_alone(
    poison: float, beside: dict[str, Any]
) -> None:
    logits = peaked(3)
    healthy = sampler().sample(logits, [sequence(**beside) for _ in range(3)])
    if poison == -math.inf:
        logits[1] = poison
    else:
        logits[1, random.randrange(VOCAB_SIZE)] = poison
    for params in ({}, {"temperature": 0, "logprobs": 5}, {"top_k": 3, "repetition_penalty": 1.1}):
        rows = [sequence(**beside), sequence(**params), sequence(**beside)]
        got = sampler().sample(logits, rows)
        assert got[0] == healthy[0]
        assert got[2] == healthy[2]
        assert got[1].logprobs is None
        assert "no token can be chosen" in (got[1].error or "")
        assert 0 <= got[1].token_id < VOCAB_SIZE


def test_forbidding_the_whole_vocabulary_is_an_error_that_says_so() -> None:
    one = sequence(ends=list(range(VOCAB_SIZE)), min_tokens=1)
    assert "min_tokens" in (sample_one(peaked(), one).error or "")


@pytest.mark.parametrize("temperature", [1e-300, 1e-38, 1e-6, 100.0])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.5}, {"top_k": 4}, {"min_p": 0.9}], ids=str)
def test_no_temperature_overflows(temperature: float, filters: dict[str, Any]) -> None:
    logits = torch.randn(VOCAB_SIZE) * 1e30
    token = sample_one(logits, sequence(temperature=temperature, **filters))
    assert token == SampledToken(int(logits.argmax()))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_chooses_the_tokens_that_the_cpu_chooses(dtype: torch.dtype) -> None:
    logits = torch.cat([peaked(12), torch.randn(6, VOCAB_SIZE)]).to(dtype)
    logits[4, 9] = math.nan
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 5, "repetition_penalty": 1.3, "prompt": [3, 4, 5]},
        {"top_p": 0.9, "logit_bias": {7: 3.0}, "presence_penalty": 0.5},
        {"top_k": 20, "ends": [1, 2], "min_tokens": 30},
        {"min_p": 0.05, "logprobs": 0},
        {},
    ]
    seeded = [{"seed": index, **kinds[index % len(kinds)]} for index in range(len(logits))]
    cpu_rows, gpu_rows = ([sequence(**params) for params in seeded] for _ in range(2))
    on_cpu, on_gpu = sampler(), Sampler(VOCAB_SIZE, "cuda", 0)
    for _ in range(20):
        expected = on_cpu.sample(logits, cpu_rows)
        got = on_gpu.sample(logits.cuda(), gpu_rows)
        for one, other in zip(expected, got, strict=True):
            assert other.error == one.error
            assert one.error or other.token_id == one.token_id
            for near, far in zip(one.logprobs or (), other.logprobs or (), strict=True):
                assert (far.token_id, far.rank) == (near.token_id, near.rank)
                assert far.logprob == pytest.approx(near.logprob, abs=1e-4)
        for row, other_row, token in zip(cpu_rows, gpu_rows, expected, strict=True):
            row.append(token.token_id)
            other_row.append(token.token_id)
    assert on_gpu.prompt_logprobs(logits[:3].cuda(), [1, 2, 3], 2)[0][0].token_id == 1
