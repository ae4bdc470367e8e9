"""Compile mode `none`: the module itself, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import nn

from engine.artifacts import MemoryStore
from engine.batch import BatchShape
from engine.events import Event, EventBus
from engine.facts import DeviceFacts, Facts, ModelFacts
from engine.models import CausalLM
from engine.strategies import Backend, CompileJob, ModelInputs
from engine.testing import CompileStrategyConformance
from engine_compile_none.strategy import NoCompile


class TestContract(CompileStrategyConformance):
    strategy = "none"


class Tiny(CausalLM):
    """[T] ids and positions -> [T, 8]."""

    attention_specs = ()

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.mix(self.embed(input_ids)) * positions[:, None]
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.embed.weight.T

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.load_state_dict(dict(weights))


class Untouchable:
    """Stands where a backend would; using it in any way fails the test."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the backend was used: {name}")


def make_job(model: CausalLM, events: EventBus) -> CompileJob:
    def dummy_batch(shape: BatchShape) -> Any:
        zeros = torch.zeros(shape.num_tokens, dtype=torch.int64)
        return nullcontext(ModelInputs(zeros, zeros))

    return CompileJob(
        model=model,
        backend=cast("Backend", Untouchable()),
        device=torch.device("cpu"),
        max_num_tokens=64,
        sizes=(1, 2, 4),
        ranges=(64,),
        break_ops=frozenset(),
        passes=(),
        store=MemoryStore(),
        events=events,
        dummy_batch=dummy_batch,
    )


def test_weights_that_change_later_are_seen() -> None:
    model = Tiny()
    compiled = NoCompile().compile(make_job(model, EventBus()))
    ids = positions = torch.arange(1, 5)
    before = compiled.call(ids, positions)
    with torch.no_grad():
        model.mix.weight.mul_(2)
    assert not torch.equal(compiled.call(ids, positions), before)


def test_it_reports_that_nothing_was_made_and_says_nothing() -> None:
    events = EventBus()
    seen: list[Event] = []
    events.subscribe(seen.append)
    compiled = NoCompile().compile(make_job(Tiny(), events))
    report = compiled.report
    assert (report.pieces, report.cache_hits, report.cache_misses, report.seconds) == (0, 0, 0, {})
    assert compiled.capturable
    assert seen == []


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "anything"])
def test_it_runs_on_any_device_and_needs_no_backend(device: str) -> None:
    facts = Facts(DeviceFacts(device), ModelFacts("Tiny", "float32", 128))
    assert NoCompile.refuse(facts) is None
    assert not NoCompile.USES_BACKEND


def test_it_starts_no_compiler() -> None:
    code = (
        "import sys\n"
        "from engine.registry import Registry\n"
        "Registry().load('compile_modes', 'none')().close()\n"
        "print([m for m in ('torch._inductor.compile_fx', 'triton') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
