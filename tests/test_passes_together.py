"""Any set of the installed passes leaves a model's results as they are, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, combinations
from typing import Any

import pytest
import torch
from torch import fx

from engine.joined_weights import settle_joins
from engine.models import CausalLM
from engine.passes import apply_passes
from engine.registry import Registry
from engine.strategies import Pass
from engine.testing.compiling import compile_job, run_step
from engine.testing.paged import PagedRunner
from engine.testing.passes import LAYERS, load, random_model, tiny_llama, tiny_qwen3
from engine.tracing import Traced, trace_model

REGISTRY = Registry()
NAMES = [n for n in REGISTRY.names("passes") if REGISTRY.load("passes", n).STAGE == "graph"]
CONFIGS = {"llama": tiny_qwen3, "transformers": tiny_llama}
EACH = {
    "add_rms_norm": 2 * LAYERS,
    "qk_norm_rope": LAYERS,
    "rope_kv_write": LAYERS,
    "silu_mul": LAYERS,
}


@cache
def model_and_trace(implementation: str, layers: int = LAYERS) -> tuple[CausalLM, Traced]:
    config = CONFIGS[implementation]()
    config.num_hidden_layers = layers
    model = random_model(implementation, config)
    return model, trace_model(model, 64, torch.device("cpu"))


def copied(traced: Traced) -> Traced:
    graph = fx.Graph()
    graph.output(graph.graph_copy(traced.graph.graph, {}))
    for old, new in zip(traced.graph.graph.nodes, graph.nodes, strict=True):
        new.meta = dict(old.meta)
    return replace(traced, graph=fx.GraphModule(traced.graph, graph))


def subsets(names: set[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))


@pytest.mark.parametrize("implementation", CONFIGS)
def test_every_set_of_passes_gives_the_models_results(implementation: str) -> None:
    model, original = model_and_trace(implementation, 1)
    expected = {n: run_step(model, model, n, seed=n) for n in (1, 7)}
    ordered = load(*NAMES)
    # Those that find something; one of the two that take rotations leaves nothing to the other.
    able: set[str] = set()
    for left_out in ("rope_kv_write", "qk_norm_rope"):
        chosen = [one for one in ordered if left_out != one.NAME]
        fired = apply_passes(copied(original).graph, chosen, "graph")
        able |= {name for name, times in fired.items() if times}
    assert {*EACH, "noop_elimination"} <= able
    for names in subsets(able):
        traced = copied(original)
        apply_passes(traced.graph, [one for one in ordered if one.NAME in names], "graph")
        traced = settle_joins(traced)
        call = traced.bind(traced.graph.forward)
        for count, hidden in expected.items():
            found = run_step(call, model, count, seed=count)
            torch.testing.assert_close(found, hidden, rtol=2e-5, atol=2e-5, msg=str(names))


@pytest.mark.parametrize("mode", ["vllm_compile", "dynamo_trace_once"])
@pytest.mark.parametrize("passes", [("rope_kv_write",), ("qk_norm_rope",)])
def test_all_passes_in_a_compile_mode_give_the_same_tokens(
    mode: str, passes: tuple[str, ...]
) -> None:
    names = [n for n in NAMES if n not in ("rope_kv_write", "qk_norm_rope")]
    for implementation in CONFIGS:
        model, _ = model_and_trace(implementation)
        strategy = REGISTRY.load("compile_modes", mode)()
        made = strategy.compile(job(model, load(*names, *passes)))
        fired = {name: times for name, times in made.report.passes.items() if times}
        assert set(passes) <= fired.keys()
        if implementation == "llama":
            assert {n: t for n, t in fired.items() if n in EACH} == {
                n: t for n, t in EACH.items() if n in (*names, *passes)
            }
        else:
            assert fired["horizontal_fusion"] == 2 * LAYERS
        attention = REGISTRY.load("attention", "sdpa")
        plain, other = (
            PagedRunner(model, attention()),
            PagedRunner(model, attention(), call=made.call),
        )
        prompt = [7, 60, 3, 42, 42, 11]
        assert other.greedy(prompt, 10, chunk_size=4) == plain.greedy(prompt, 10, chunk_size=4)
        strategy.close()


def job(model: CausalLM, passes: list[Pass]) -> Any:
    backend = REGISTRY.load("backends", "eager")()
    return compile_job(model, backend, passes=tuple(passes), exact_sizes=(2,), ranges=(8,))
