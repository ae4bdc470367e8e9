"""Steps launched before the tokens of the step before are read change no result.

On the CPU the device and the host are one, so nothing is gained there; what may go wrong is the
same: rows of sequences that have ended, blocks, counts, random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, CompilationConfig, SamplingParams
from engine.request import RequestOutput
from engine.runtime.simulated_graphs import SimulatedGraphDevice
from engine.runtime.step import Step
from engine.testing.tiny import write_tiny_model

OFF = CompilationConfig(mode="none", cudagraph_mode="none")
TIGHT = {"max_num_seqs": 4, "block_size": 4, "num_kv_blocks": 24, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engines(folder: Path) -> Iterator[tuple[LLM, LLM]]:
    """Engines that differ in running ahead only, and whose sequences fight for blocks."""
    settings: dict[str, Any] = {"compilation_config": OFF, **TIGHT}
    with (
        LLM(str(folder), async_scheduling=False, **settings) as plain,
        LLM(str(folder), async_scheduling=True, **settings) as ahead,
    ):
        yield plain, ahead


def watch(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Return the list of steps that are launched ahead from now on."""
    steps: list[Step] = []
    launch = llm.core._runner.launch

    def watched(step: Step, after: Any = None) -> Any:
        assert step.ahead == (after is not None)
        steps.extend([step] if step.ahead else [])
        return launch(step, after)

    monkeypatch.setattr(llm.core._runner, "launch", watched)
    return steps


def told(results: list[RequestOutput]) -> list[Any]:
    """Return what a client sees; of log-probabilities the tokens, since neighbours may differ."""
    outputs = [output for result in results for output in result.outputs]
    return [
        (
            o.token_ids,
            o.text,
            o.finish_reason,
            o.stop_reason,
            [p[0].token_id for p in o.logprobs or ()],
        )
        for o in outputs
    ]


def random_params() -> SamplingParams:
    """Return parameters of any kind, seeded where they draw."""
    drawing: dict[str, Any] = random.choice(
        [
            *[{"temperature": 0}] * 6,
            {"temperature": 1.5, "seed": random.randrange(99)},
            {"temperature": 1, "top_k": 5, "top_p": 0.9, "seed": 3},
            {"temperature": 0, "repetition_penalty": 1.3},
            {"temperature": 0, "logprobs": 2},
        ]
    )
    return SamplingParams(
        max_tokens=random.randrange(1, 24),
        min_tokens=random.choice([0, 1]),
        stop_token_ids=random.sample(range(256), random.choice([0, 60])),
        ignore_eos=random.random() < 0.5,
        n=1,
        **drawing,
    )


@pytest.mark.parametrize("round_", range(4))
def test_any_mixture_of_requests_gives_the_same(engines: tuple[LLM, LLM], round_: int) -> None:
    plain, ahead = engines
    prompts = [[random.randrange(256) for _ in range(random.randrange(1, 30))] for _ in range(9)]
    params = [random_params() for _ in prompts]
    expected = told(plain.generate(prompts, params, progress=False))
    assert told(ahead.generate(prompts, params, progress=False)) == expected
    stats = ahead.core.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert not ahead.core.has_work


def test_decode_runs_ahead_from_the_prompt_to_the_last_token(
    engines: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = engines[1]
    before = dict(ahead.core.stats().steps)
    steps = watch(ahead, monkeypatch)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ahead.generate([[1, 2, 3], [4]], params, progress=False)
    assert len(steps) == 11
    # The last token's number is known, so no step was in vain.
    ran = sum(ahead.core.stats().steps.values()) - sum(before.values())
    assert ran == 12


def test_a_sequence_with_penalties_is_waited_for(
    engines: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watch(engines[1], monkeypatch)
    params = SamplingParams(temperature=0, max_tokens=5, frequency_penalty=0.5, ignore_eos=True)
    engines[1].generate([[1, 2, 3]], params, progress=False)
    assert not steps


def test_aborting_while_a_step_is_ahead_frees_everything(engines: tuple[LLM, LLM]) -> None:
    ahead = engines[1]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    stream = ahead.stream([5, 6, 7], params)
    for _ in range(3):
        next(stream)
    assert ahead.core._ahead is not None
    stream.close()  # type: ignore[attr-defined]  # a generator
    stats = ahead.core.stats()
    assert stats.num_free_blocks == stats.num_blocks
    expected = told(engines[0].generate([[9, 8]], params, progress=False))
    assert told(ahead.generate([[9, 8]], params, progress=False)) == expected


def test_a_step_ahead_that_fails_ends_its_requests(
    engines: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = engines[1]
    launch = ahead.core._runner.launch

    def failing(step: Step, after: Any = None) -> Any:
        if step.ahead:
            raise MemoryError("planted")
        return launch(step, after)

    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with monkeypatch.context() as patched:
        patched.setattr(ahead.core._runner, "launch", failing)
        result = ahead.generate([[1, 2]], params, progress=False)[0]
    assert result.outputs[0].finish_reason == "error"
    assert "planted" in str(result.error)
    assert ahead.generate([[1, 2]], params, progress=False)[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("round_", range(2))
def test_tokens_of_a_recorded_head_are_those_of_the_logits(
    engines: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    plain, ahead = engines
    runner = ahead.core._runner
    prompts = [[random.randrange(256) for _ in range(random.randrange(1, 9))] for _ in range(6)]
    params = [random_params() for _ in prompts[1:]]
    params.append(SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    expected = told(plain.generate(prompts, params, progress=False))
    with torch.inference_mode():
        head = runner._record_head(SimulatedGraphDevice(), (1, 2, 4))
    assert head is not None
    used: list[int] = []
    run = head.run

    def watched(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        used.append(len(hidden))
        return run(hidden)

    monkeypatch.setattr(head, "run", watched)
    monkeypatch.setattr(runner, "_head", head)
    assert told(ahead.generate(prompts, params, progress=False)) == expected
    alone = ahead.generate([prompts[-1]], [params[-1]], progress=False)
    assert told(alone) == told(plain.generate([prompts[-1]], [params[-1]], progress=False))
    assert used.count(1) >= 19


def test_it_is_told_whether_steps_run_ahead(engines: tuple[LLM, LLM], folder: Path) -> None:
    assert engines[1].resolution["async_scheduling"].reason == "asked for"
    with LLM(str(folder), compilation_config=OFF, threads=1) as llm:
        record = llm.resolution["async_scheduling"]
        assert (record.effective, record.decided_by) == ("False", "device")
