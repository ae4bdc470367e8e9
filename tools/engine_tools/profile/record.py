"""Runs a few steps of an engine under PyTorch's profiler."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.events import Event
from engine.ranges import step_range
from engine.request import EngineRequest
from engine.sampling_params import SamplingParams
from engine.settings import Settings
from engine_tools.profile.summary import STEP, Phase, summarize
from engine_tools.profile.trace import read_trace

_WARM_UP = 3
"""Decode steps before anything is timed: what loads lazily is then loaded."""


@dataclass(frozen=True)
class Workload:
    """What is run.

    Attributes:
        steps: decode steps.
        batch: sequences that run at once.
        prompt_tokens: of each sequence.
    """

    steps: int = 20
    batch: int = 1
    prompt_tokens: int = 32


@dataclass(frozen=True)
class Profile:
    """What came of it.

    Attributes:
        trace: the file, for Perfetto or chrome://tracing.
        device: the device that computed.
        plain_us: one decode step without the profiler, in microseconds.
        phases: prefill and decode, with the profiler, which costs time of its own.
    """

    trace: Path
    device: str
    plain_us: float
    phases: tuple[Phase, ...]


def profile(
    settings: Settings | EngineConfig,
    workload: Workload,
    out: Path,
    *,
    on_event: Callable[[Event], None] | None = None,
) -> Profile:
    """Start an engine, run steps with and without the profiler, and write a trace.

    Args:
        settings: of the engine.
        workload: what is run.
        out: the trace; compressed when it ends in .gz.
        on_event: receives every event of the start.

    Raises:
        EngineError: the engine can't start, the workload doesn't fit, or a step failed.
        ConfigError: the trace can't be written.
    """
    _check_writable(out)
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    from engine import LLM

    with LLM(engine_config=settings, on_event=on_event) as llm:
        _check_fits(llm, workload)
        runner = _Runner(llm, workload)
        runner.run(_WARM_UP)
        plain = runner.run(workload.steps)
        activities = [ProfilerActivity.CPU]
        device = str(llm.resolution.config.device)
        if device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # One cycle is all there is, and without this it is warned of.
        with torch_profile(activities=activities, acc_events=True) as recorded:
            runner.run(workload.steps)
    recorded.export_chrome_trace(str(out))
    return Profile(out, device, 1e6 * plain, summarize(read_trace(out)))


def _check_writable(out: Path) -> None:
    there = out.exists()
    try:
        with out.open("ab"):
            pass
        if not there:
            out.unlink()
    except OSError as error:
        raise ConfigError(
            f"--out={str(out)!r}: can't be written ({error.strerror}); name another file"
        ) from error


def _check_fits(llm: Any, workload: Workload) -> None:
    config, room = llm.resolution.config, llm.core.kv_tokens
    length = workload.prompt_tokens + _new_tokens(llm, workload)
    if workload.batch > config.max_num_seqs:
        raise ConfigError(
            f"--batch={workload.batch}: at most {config.max_num_seqs} sequences run at once; "
            "raise --max-num-seqs, or lower it"
        )
    if length > config.max_model_len or length * workload.batch > room:
        raise ConfigError(
            f"--prompt-tokens={workload.prompt_tokens}, --steps={workload.steps}: "
            f"{workload.batch} sequences of {length} tokens don't fit the context of "
            f"{config.max_model_len} or the KV cache of {room} tokens; lower them"
        )


def _new_tokens(llm: Any, workload: Workload) -> int:
    """Return how many tokens a sequence must be able to make.

    The first ones decode while the prompts of the last are computed, and a step that runs ahead
    must have something to compute.
    """
    budget = int(llm.resolution.config.max_num_batched_tokens)
    prefills = -(-workload.batch * (workload.prompt_tokens + 1) // budget)
    return workload.steps + prefills + 2


class _Runner:
    """Steps an engine through prompts of its own; no two are equal, so that none is cached."""

    def __init__(self, llm: Any, workload: Workload) -> None:
        self._core, self._workload = llm.core, workload
        self._tokens = _new_tokens(llm, workload)
        self._random = random.Random(0)  # noqa: S311 - any tokens will do, the same each time
        self._count = 0

    def run(self, steps: int) -> float:
        """Compute prompts, then decode; return the seconds of one decode step."""
        started = [self._add() for _ in range(self._workload.batch)]
        waiting = set(started)
        while waiting:
            waiting -= self._step("prefill")
        self._wait()
        start = time.perf_counter()
        for _ in range(steps):
            self._step("decode")
        self._wait()
        seconds = (time.perf_counter() - start) / steps
        for name in started:
            self._core.abort(name)
        while self._core.has_work:
            self._core.step()
        self._wait()
        return seconds

    def _add(self) -> str:
        self._count += 1
        ids = self._random.choices(range(self._core.vocab_size), k=self._workload.prompt_tokens)
        params = SamplingParams(temperature=0, max_tokens=self._tokens, ignore_eos=True)
        name = f"profile-{self._count}"
        self._core.add(EngineRequest(request_id=name, prompt_token_ids=ids, params=params))
        return name

    def _step(self, phase: str) -> set[str]:
        """Run one step; return who got a token."""
        with step_range(STEP + phase):
            outputs = self._core.step()
        for output in outputs:
            if output.error:
                raise EngineError(f"{phase}: {output.error}")
        return {output.request_id for output in outputs if output.token_ids}

    def _wait(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
