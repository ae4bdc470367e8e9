"""A tiny model, recordable attention and a helper that runs both through the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CompilationConfig, SamplingParams
from engine.events import Event, GraphCaptured
from engine.request import EngineStats
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

ATTENTION = """
from engine.hookspecs import hookimpl

ENGINE_API_VERSION = 1

@hookimpl
def engine_register_attention():
    from engine.testing.recordable_attention import RecordableAttention
    return RecordableAttention
"""


@dataclass
class Ran:
    """What a run of the engine gave."""

    tokens: list[list[int]]
    steps: dict[str, int]
    late_compiles: int
    stats: EngineStats
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def captured(self) -> list[tuple[str, int]]:
        return [(e.kind, e.num_tokens) for e in self.of(GraphCaptured) if not e.dropped]


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_model_len=64)


@pytest.fixture
def recordable(make_plugin: PluginMaker) -> str:
    """Install attention that any batch may be recorded with; returns its name."""
    make_plugin("recordable", kind="attention", source=ATTENTION)
    return "recordable"


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled code is kept, so that graph modes share it and nobody's cache is touched."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture
def run(tiny_model: Path, recordable: str, artifacts: Path) -> Run:
    """Return a function that generates greedily with given settings."""

    def generate(prompts: list[list[int]], new: int, **settings: Any) -> Ran:
        compilation = {
            name: settings.pop(name)
            for name in [*settings]
            if name in CompilationConfig.model_fields
        }
        defaults: dict[str, Any] = {
            "device": "cpu",
            "attention": recordable,
            "skip_tokenizer": True,
            "block_size": 8,
            "num_kv_blocks": 40,
            "max_num_seqs": 6,
            "max_num_batched_tokens": 24,
            "optimization_level": 0,
        }
        events: list[Event] = []
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        with LLM(
            str(tiny_model),
            compilation_config=CompilationConfig(**{"cache_dir": artifacts, **compilation}),
            on_event=events.append,
            **{**defaults, **settings},
        ) as llm:
            results = llm.generate(prompts, params, progress=False)
            stats = llm.core.stats()
        tokens = [result.outputs[0].token_ids for result in results]
        return Ran(tokens, dict(stats.steps), stats.late_compiles, stats, events)

    return generate
