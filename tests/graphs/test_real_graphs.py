"""The cases that break graph strategies, on real CUDA graphs."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, CompilationConfig, ConfigError, SamplingParams
from engine.attention import AttentionPlugin
from engine.batch import BatchShape
from engine.events import Event, GraphCaptured
from engine.registry import Registry
from engine.testing.compiling import ToyDecoder
from engine.testing.conformance.toys import STRANGE, Strange
from engine.testing.graph_modes import GraphBench, decode, prefilled, random_ids, random_steps
from engine.testing.recordable_attention import RecordableAttention

pytestmark = pytest.mark.gpu

RECORDING = ["full", "full_and_piecewise", "full_decode_only", "piecewise"]


def attention_named(name: str) -> AttentionPlugin:
    if name == "recordable":
        return RecordableAttention()
    plugin: AttentionPlugin = Registry().load("attention", name)()
    return plugin


def bench_of(strategy: str, attention: str = "recordable", **settings: Any) -> GraphBench:
    from engine.runtime.cuda_graphs import CudaGraphDevice

    model = settings.pop("model", None) or ToyDecoder(layers=2, hidden=64)
    return GraphBench(
        strategy,
        model=model.to("cuda"),
        attention=attention_named(attention),
        device=CudaGraphDevice(),
        **settings,
    )


@pytest.mark.parametrize("attention", ["recordable", "triton"])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", RECORDING)
def test_any_batch_gives_what_it_gives_without_graphs(
    name: str, lazy: bool, attention: str
) -> None:
    bench = bench_of(name, attention, lazy=lazy, abort_on_failure=True)
    for number, result in random_steps(bench, 20):
        assert result.equal, (number, result.decision)


@pytest.mark.parametrize("name", RECORDING)
def test_nan_in_padded_rows_reaches_neither_live_rows_nor_a_block(name: str) -> None:
    model = ToyDecoder(layers=2, hidden=64)
    model.embedding.weight[0] = float("nan")  # the token that padded rows hold
    bench = prefilled(bench_of(name, model=model, sizes=(4, 8)), [5, 3, 6])
    reserved = bench.reserved()
    for _ in range(3):
        result = bench.step(decode([0, 1, 2]))
        assert not result.decision.reason
        assert result.equal
    assert torch.equal(bench.reserved(), reserved)


@pytest.mark.parametrize("attention", ["recordable", "triton"])
@pytest.mark.parametrize("name", RECORDING)
def test_the_same_padded_shape_with_other_context_lengths(name: str, attention: str) -> None:
    bench = prefilled(bench_of(name, attention, sizes=(2,)), [1, 2, 25, 24])
    for names in ([0, 1], [2, 3], [1, 2], [0, 3], [3]):
        result = bench.step(decode(names))
        assert result.equal
        assert result.decision.padded.num_tokens == 2


@pytest.mark.parametrize("attention", ["recordable", "triton"])
@pytest.mark.parametrize("name", RECORDING)
def test_poisoned_buffers_change_nothing(name: str, attention: str) -> None:
    bench = prefilled(bench_of(name, attention, debug=True), [5, 3, 1])
    for names in ([0, 1, 2], [2], [1, 0], [0, 1, 2]):
        assert bench.step(decode(names)).equal
    assert bench.step([(0, random_ids(3)), (1, random_ids(2))]).equal


@pytest.mark.parametrize("name", RECORDING)
def test_inputs_of_another_length_are_refused(name: str) -> None:
    bench = prefilled(bench_of(name, sizes=(2, 4)), [5, 3])
    decision = bench.strategy.dispatch(BatchShape.decode(2))
    longer, attention = bench.buffers.fill_dummy(BatchShape.decode(4))
    with (
        torch.inference_mode(),
        bench.context(BatchShape.decode(4), attention),
        pytest.raises(RuntimeError, match="graph of 2 tokens reads static buffers"),
    ):
        bench.strategy.run(decision, longer)


class Padding(ToyDecoder):
    """Goes through a product that pads its rows itself, in memory of its own."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(input_ids, positions)
        weight = self.embedding.weight
        padded = hidden.new_empty(16, hidden.shape[1])
        padded[: hidden.shape[0]] = hidden
        product = torch.cat((padded, padded)).relu() @ weight.T @ weight
        return hidden + product[: hidden.shape[0]]


@pytest.mark.parametrize("name", RECORDING)
def test_inputs_a_b_a_through_an_operator_with_internal_padding(name: str) -> None:
    model = Padding(layers=2, hidden=64)
    bench = prefilled(bench_of(name, model=model, sizes=(2,)), [4, 4])
    first, second = decode([0, 1]), decode([0, 1])
    outcomes = []
    for chunks in (first, second, first):
        for sequence in bench.tokens.values():
            del sequence.token_ids[4:]
            sequence.num_computed_tokens = 4
        bench.reference.lengths = dict.fromkeys(bench.reference.lengths, 4)
        result = bench.step(chunks)
        assert result.equal
        outcomes.append(torch.cat(result.hidden))
    assert torch.equal(outcomes[0], outcomes[2])
    assert not torch.equal(outcomes[0], outcomes[1])


class Waiting(ToyDecoder):
    """Reads a value on the host when there are four tokens and it is being recorded."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(input_ids, positions)
        if input_ids.shape[0] == 4 and torch.cuda.is_current_stream_capturing():
            hidden = hidden * float(hidden.sum())
        return hidden


@pytest.mark.parametrize("name", RECORDING)
def test_an_illegal_capture_costs_that_size_and_leaves_the_device_usable(name: str) -> None:
    bench = bench_of(name, model=Waiting(layers=2, hidden=64), sizes=(1, 2, 4, 6))
    assert {event.num_tokens for event in bench.captured if event.dropped} == {4}
    prefilled(bench, [5, 3, 1])
    for names, padded in (([0], 1), ([0, 1], 2), ([0, 1, 2], 6)):
        result = bench.step(decode(names))
        assert result.equal
        assert result.decision.padded.num_tokens == padded
    # Nothing waits for the failed recording to end, random numbers least.
    torch.randn(1, device="cuda")


def test_a_pool_outlives_its_only_graph_and_an_empty_recording() -> None:
    from engine.runtime.cuda_graphs import CudaGraphDevice

    device, values = CudaGraphDevice(), torch.zeros(1, device="cuda")
    for expected in (1, 2):
        with device.session():
            device.begin()
            assert device.end() is None
            device.begin()
            values += 1
            graph = device.end()
        assert graph is not None
        graph.replay()
        assert int(values) == expected
        del graph


@pytest.mark.parametrize("name", ["full", "piecewise"])
def test_an_unknown_operator_is_refused_or_broken_at(name: str) -> None:
    bench = bench_of(name, model=Strange(layers=2, hidden=64), unknown_ops=(STRANGE,))
    prefilled(bench, [5, 3])
    result = bench.step(decode([0, 1]))
    assert result.equal
    assert result.decision.kind == ("eager" if name == "full" else "piecewise")


def tiny(folder: Path, events: list[Event], **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "skip_tokenizer": True,
        "num_kv_blocks": 400,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "compilation_config": CompilationConfig(
            mode="none", cudagraph_mode="full_and_piecewise", backend="eager"
        ),
    }
    return LLM(str(folder), device="cuda", on_event=events.append, **{**defaults, **settings})


def test_random_prompt_lengths_record_nothing_and_take_no_memory(tiny_model: Path) -> None:
    events: list[Event] = []
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    prompts = [random_ids(random.randrange(1, 60)) for _ in range(100)]
    with tiny(tiny_model, events) as llm:
        captured = sum(isinstance(event, GraphCaptured) for event in events)
        llm.generate(prompts, params, progress=False)
        before = torch.cuda.memory_reserved()
        random.shuffle(prompts)
        llm.generate(prompts, params, progress=False)
        assert torch.cuda.memory_reserved() <= before
        assert sum(isinstance(event, GraphCaptured) for event in events) == captured > 0


def test_one_short_context_is_no_reason_to_read_beyond_its_blocks(tiny_model: Path) -> None:
    """The largest step has far more tokens than one request may have."""
    short = {"max_num_seqs": 1, "max_model_len": 64, "num_kv_blocks": None}
    with tiny(tiny_model, [], **short) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        [answer] = llm.generate([random_ids(9)], params, progress=False)
        torch.cuda.synchronize()
        assert len(answer.outputs[0].token_ids) == 4


def test_a_share_that_cant_hold_a_cache_is_refused_with_one_that_can(tiny_model: Path) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    with pytest.raises(ConfigError, match=r"raise --memory-utilization to 0\.\d\d") as refused:
        tiny(tiny_model, [], num_kv_blocks=None, memory_utilization=0.001)
    assert "graphs" in str(refused.value)
    # Nothing of the half-started engine is left.
    del refused
    gc.collect()
    torch.cuda.empty_cache()
    # cuBLAS keeps 32 MiB for each of the two streams that were used, until the process ends.
    assert torch.cuda.memory_allocated() <= 66 * 2**20
