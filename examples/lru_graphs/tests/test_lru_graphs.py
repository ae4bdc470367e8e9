"""The contract of a graph mode, and what only this one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_lru_graphs.strategy import LruGraphs, LruOptions

from engine import LLM, SamplingParams
from engine.events import StepRan
from engine.testing import GraphStrategyConformance
from engine.testing.distributions import PluginMaker
from engine.testing.graph_modes import GraphBench, decode, random_ids
from engine.testing.tiny import write_tiny_model


class TestContract(GraphStrategyConformance):
    strategy = "lru_graphs"


def bench(**options: int) -> GraphBench:
    made = GraphBench(LruGraphs(LruOptions(**options)), sizes=(1, 2, 3, 4), max_num_seqs=4)
    for name in range(4):
        assert made.step([(name, random_ids(7))]).equal
    return made


def kept(made: GraphBench) -> list[int]:
    assert isinstance(made.strategy, LruGraphs)
    return sorted(shape.num_tokens for shape in made.strategy.recorded)


def run(made: GraphBench, *counts: int) -> None:
    for count in counts:
        assert made.step(decode(list(range(count)))).equal


def test_nothing_is_recorded_before_it_is_met_often() -> None:
    made = bench(after=3)
    run(made, 2, 2)
    assert kept(made) == []
    run(made, 2)
    assert kept(made) == [2]
    assert not made.step(decode([0, 1])).decision.reason


def test_the_least_recently_used_graph_makes_room() -> None:
    made = bench(after=1, max_graphs=2)
    run(made, 4, 3, 4, 2)
    assert kept(made) == [2, 4]
    run(made, 3)
    assert kept(made) == [2, 3]


def test_a_memory_budget_is_met_by_forgetting_a_graph_that_is_as_large() -> None:
    unbounded = bench(after=1)
    run(unbounded, 4)
    budget = unbounded.device.memory()
    made = GraphBench(
        LruGraphs(LruOptions(after=1)), sizes=(1, 2, 3, 4), max_num_seqs=4, memory_budget=budget
    )
    for name in range(4):
        assert made.step([(name, random_ids(7))]).equal
    run(made, 4, 3, 2, 4, 1)
    assert kept(made) == [1]
    assert made.device.memory() <= 1.1 * budget


ATTENTION = """
from engine.hookspecs import hookimpl
ENGINE_API_VERSION = 1

@hookimpl
def engine_register_attention():
    from engine.testing.recordable_attention import RecordableAttention
    return RecordableAttention
"""


@pytest.mark.parametrize("after", [1, 3])
def test_tokens_are_those_without_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    # No attention implementation for the CPU may be recorded, so the kit's is installed.
    monkeypatch.syspath_prepend(tmp_path)
    PluginMaker(tmp_path)("recordable", kind="attention", source=ATTENTION)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    steps: list[StepRan] = []

    def generate(mode: str, **options: int) -> list[list[int]]:
        chosen = {"mode": "none", "cudagraph_mode": mode, "cudagraph_options": options}
        with LLM(
            model,
            graph_device="simulated",
            attention="recordable",
            compilation_config=chosen,
            on_event=lambda event: steps.append(event) if isinstance(event, StepRan) else None,
        ) as llm:
            outputs = llm.generate(["one", "three", "a longer prompt"], greedy)
        return [output.outputs[0].token_ids for output in outputs]

    assert generate("none") == generate("lru_graphs", after=after)
    assert any(step.kind == "lru" and not step.reason for step in steps)
