"""Runs batches of random prompts in an engine of this process, and times them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import ConfigError, EngineError
from engine.request import EngineRequest
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine import LLM

Prompts = list[list[int]]


@dataclass(frozen=True)
class Workload:
    """What is run.

    Attributes:
        batch_size: sequences that are given at once.
        input_len: tokens of each prompt.
        output_len: tokens that follow each.
        repeats: how often it is measured.
        warm_up: how often it is run before.
        seed: of the random prompts.
    """

    batch_size: int
    input_len: int
    output_len: int
    repeats: int = 3
    warm_up: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Timeline:
    """When the tokens of one sequence came, in seconds from the moment the batch was given."""

    arrivals: tuple[float, ...]

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.arrivals[0]

    @property
    def e2e(self) -> float:
        """Time to the last token."""
        return self.arrivals[-1]

    @property
    def itl(self) -> list[float]:
        """Times between one token and the next."""
        return [
            later - earlier
            for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)
        ]

    @property
    def tpot(self) -> float | None:
        """Time for each token after the first; None when there is none."""
        rest = len(self.arrivals) - 1
        return (self.e2e - self.ttft) / rest if rest else None


class Prompter:
    """Makes prompts of random tokens; none comes twice, so that no prefix is found cached."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab = range(vocab_size)
        self._random = random.Random(seed)  # noqa: S311 - any tokens do, the same each time

    def prompts(self, count: int, length: int) -> Prompts:
        """Return the next prompts."""
        return [self._random.choices(self._vocab, k=length) for _ in range(count)]


def params(new: int) -> SamplingParams:
    """Return greedy parameters that give just so many tokens."""
    return SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)


def check_fits(llm: LLM, workload: Workload, *, at_once: bool) -> None:
    """Refuse what the engine can't hold.

    Args:
        llm: the engine.
        workload: what is to run.
        at_once: no sequence may wait for another.

    Raises:
        ConfigError: names the flags and what to change.
    """
    config, room = llm.resolution.config, llm.core.kv_tokens
    length = workload.input_len + workload.output_len
    if at_once and workload.batch_size > config.max_num_seqs:
        raise ConfigError(
            f"--batch-size={workload.batch_size}: at most {config.max_num_seqs} sequences run at "
            "once; lower it, or raise --max-num-seqs"
        )
    needed = length * (workload.batch_size if at_once else 1)
    if length > config.max_model_len or needed > room:
        raise ConfigError(
            f"--input-len={workload.input_len}, --output-len={workload.output_len}: sequences of "
            f"{length} tokens don't fit the context of {config.max_model_len} tokens or the KV "
            f"cache of {room} tokens; lower them"
        )


def run_batch(llm: LLM, prompts: Prompts, new: int) -> list[Timeline]:
    """Give prompts at once and note when each token has been read back.

    The loop is stepped as a server steps it; no text is made of the tokens.

    Raises:
        EngineError: a sequence failed.
    """
    core = llm.core
    arrivals: dict[str, list[float]] = {f"bench-{n}": [] for n in range(len(prompts))}
    begun = time.perf_counter()
    for name, prompt in zip(arrivals, prompts, strict=True):
        core.add(EngineRequest(request_id=name, prompt_token_ids=prompt, params=params(new)))
    while core.has_work:
        outputs = core.step()
        now = time.perf_counter() - begun
        for output in outputs:
            if output.error:
                raise EngineError(f"a sequence of the benchmark failed: {output.error}")
            arrivals[output.request_id] += [now] * len(output.token_ids)
    return [Timeline(tuple(times)) for times in arrivals.values()]


def generate_seconds(llm: LLM, prompts: Prompts, new: int) -> float:
    """Return the seconds of one offline call, text included.

    Raises:
        EngineError: a sequence failed.
    """
    begun = time.perf_counter()
    results = llm.generate([*prompts], params(new), progress=False)
    seconds = time.perf_counter() - begun
    for result in results:
        if result.error:
            raise EngineError(f"a sequence of the benchmark failed: {result.error}")
    return seconds


def decode_ms(llm: LLM, prompter: Prompter, workload: Workload) -> tuple[float, float]:
    """Return ms to the first token and for each decode step after it, of one batch.

    A decode step is what many tokens take more than one: (t(N) - t(1)) / (N - 1).
    """
    batch = workload.batch_size, workload.input_len
    one = generate_seconds(llm, prompter.prompts(*batch), 1)
    many = generate_seconds(llm, prompter.prompts(*batch), workload.output_len)
    return 1e3 * one, 1e3 * (many - one) / max(1, workload.output_len - 1)


@contextmanager
def unnoticed_compilations(llm: LLM, notes: list[str]) -> Iterator[None]:
    """Note when something was compiled while it was measured."""
    before = llm.core.stats().late_compiles
    yield
    late = llm.core.stats().late_compiles - before
    if late:
        notes.append(f"{late} compilations happened while it was measured; the figures have them")
