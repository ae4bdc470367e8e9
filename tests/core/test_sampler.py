"""The sampler: what is chosen, in which order it is decided, and that rows don't disturb rows."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from typing import Any

import pytest
import torch

from engine.request import EngineRequest, PositionLogprobs
from engine.runtime.counter_rng import child_seed, derive, uniforms
from engine.runtime.sampler import SampledToken, Sampler
from engine.runtime.sequence import Sequence
from engine.sampling_params import SamplingParams

VOCAB = 700
_numbers = itertools.count()


def sequence(
    *,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    ends: Any = (),
    **params: Any,
) -> Sequence:
    """A sequence with a fresh id, as the scheduler would hold it."""
    request = EngineRequest(
        request_id=f"request-{next(_numbers)}",
        prompt_token_ids=prompt or [1],
        params=SamplingParams(max_tokens=None, **params),
        end_token_ids=list(ends),
    )
    made = Sequence(request)
    for token in output or ():
        made.append(token)
    return made


def sampler(seed: int = 0) -> Sampler:
    return Sampler(VOCAB, torch.device("cpu"), seed)


def sample_one(logits: torch.Tensor, one: Sequence) -> SampledToken:
    return sampler().sample(logits[None], [one])[0]


def peaked(*shape: int) -> torch.Tensor:
    """Logits as models give them: a few likely tokens and a long tail."""
    return torch.randn(*shape, VOCAB) * 4


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
    logits = torch.randn(6, VOCAB) * spread
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
    "filters", [{"top_k": 5}, {"top_p": 5 / VOCAB}, {"top_k": 5, "min_p": 1.0}]
)
def test_among_equal_tokens_the_lowest_ids_stay(filters: dict[str, Any]) -> None:
    logits = torch.zeros(300, VOCAB)
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
        assert token.token_id < VOCAB
        assert all(entry.token_id < VOCAB for entry in token.logprobs or [])


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
    logits = (torch.randn(12, VOCAB) * spread).bfloat16().float()

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
    logits = torch.zeros(40, VOCAB)
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
            prompt=random.choices(range(VOCAB), k=80),
            temperature=0,
            logprobs=20,
            repetition_penalty=random.choice([1.0, 0.7, 1.4]),
            presence_penalty=random.choice([0.0, random.uniform(-2, 2)]),
            frequency_penalty=random.choice([0.0, random.uniform(-2, 2)]),
            logit_bias={random.randrange(VOCAB): random.uniform(-9, 9) for _ in range(5)},
        )
        for _ in range(6)
    ]
    for _ in range(90):  # more different tokens than the counts have room for at first
        logits = torch.randn(len(rows), VOCAB)
        sampled = shared.sample(logits, rows)
        for row, one, token in zip(logits, rows, sampled, strict=True):
            expected = adjusted_by_hand(row, one).log_softmax(-1)
            assert token.logprobs is not None
            for entry in token.logprobs:
                assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-4)
            one.append(token.token_id)


def test_presence_and_frequency_count_the_output_only_and_repetition_the_prompt_too() -> None:
    logits = torch.zeros(VOCAB)
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
        sequence(temperature=0, prompt=list(range(VOCAB)), repetition_penalty=10.0),
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
    shared, logits = sampler(), torch.zeros(VOCAB)
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
    logits = torch.zeros(VOCAB)
    logits[10], logits[20], logits[30], logits[40] = 50.0, 40.0, 30.0, 20.0
    params: dict[str, Any] = {
        "temperature": 0,
        "min_tokens": 2,
        "stop_token_ids": [20],
        "logit_bias": {10: 100.0},  # no bias brings a forbidden token back
    }
    one = sequence(ends=[10, VOCAB + 5], logprobs=3, **params)
    for expected in (30, 30, 10):
        token = sample_one(logits, one)
        assert token.token_id == expected
        one.append(token.token_id)
    ignoring = sequence(ends=[10], ignore_eos=True, **params)
    assert sample_one(logits, ignoring).token_id == 10


def test_a_drawn_token_is_never_a_forbidden_one() -> None:
    logits = torch.zeros(200, VOCAB)
    ends = list(range(1, VOCAB))
    rows = [sequence(ends=ends, min_tokens=1, top_p=random.choice([0.5, 1.0])) for _ in range(200)]
    assert {t.token_id for t in sampler().sample(logits, rows)} == {0}


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
        logits[1, random.randrange(VOCAB)] = poison
    for params in ({}, {"temperature": 0, "logprobs": 5}, {"top_k": 3, "repetition_penalty": 1.1}):
        rows = [sequence(**beside), sequence(**params), sequence(**beside)]
        got = sampler().sample(logits, rows)
        assert got[0] == healthy[0]
        assert got[2] == healthy[2]
        assert got[1].logprobs is None
        assert "no token can be chosen" in (got[1].error or "")
        assert 0 <= got[1].token_id < VOCAB


def test_forbidding_the_whole_vocabulary_is_an_error_that_says_so() -> None:
    one = sequence(ends=list(range(VOCAB)), min_tokens=1)
    assert "min_tokens" in (sample_one(peaked(), one).error or "")


@pytest.mark.parametrize("temperature", [1e-300, 1e-38, 1e-6, 100.0])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.5}, {"top_k": 4}, {"min_p": 0.9}], ids=str)
def test_no_temperature_overflows(temperature: float, filters: dict[str, Any]) -> None:
    logits = torch.randn(VOCAB) * 1e30
    token = sample_one(logits, sequence(temperature=temperature, **filters))
    assert token == SampledToken(int(logits.argmax()))


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
    logits = torch.randn(VOCAB) - 9
    equal = sorted(random.sample(range(VOCAB), 20))
    logits[equal] = 0.0
    token = sample_one(logits, sequence(logprobs=8, seed=11, top_p=0.9))
    chosen, *top = entries(token.logprobs)
    assert [(id_, rank) for id_, _, rank in top] == [(equal[i], i + 1) for i in range(8)]
    assert chosen[2] == equal.index(chosen[0]) + 1


def test_forbidden_tokens_are_no_alternatives() -> None:
    one = sequence(ends=list(range(2, VOCAB)), min_tokens=1, logprobs=20)
    assert {id_ for id_, _, _ in entries(sample_one(peaked(), one).logprobs)} == {0, 1}


def test_prompt_log_probabilities_are_of_the_given_tokens_for_any_number_of_positions() -> None:
    logits = peaked(300).bfloat16()
    targets = [random.randrange(VOCAB) for _ in range(300)]
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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_chooses_the_tokens_that_the_cpu_chooses(dtype: torch.dtype) -> None:
    logits = torch.cat([peaked(12), torch.randn(6, VOCAB)]).to(dtype)
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
    on_cpu, on_gpu = sampler(), Sampler(VOCAB, "cuda", 0)
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
