"""`debug_graphs`: static buffers are poisoned, addresses checked, and a fault is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine.attention import AttentionInputs, AttentionSpec
from engine.recording import Checkpoint, first_divergence
from engine.testing.compiling import ToyDecoder
from engine.testing.graph_modes import GraphBench, decode, prefilled, random_ids
from engine.testing.recordable_attention import RecordableAttention

RECORDING = ["full", "full_and_piecewise", "full_decode_only", "piecewise"]


@pytest.mark.parametrize("name", RECORDING)
def test_poisoned_buffers_change_nothing(name: str) -> None:
    bench = prefilled(GraphBench(name, debug=True), [5, 3, 1])
    for names in ([0, 1, 2], [2], [1, 0], [0, 1, 2]):
        result = bench.step(decode(names))
        assert result.equal
        assert not result.decision.reason
    assert bench.step([(0, random_ids(3)), (1, random_ids(2))]).equal


def test_a_forgotten_buffer_is_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poison must be able to show something."""
    bench = prefilled(GraphBench("full", debug=True), [5, 3, 1])
    monkeypatch.setattr(type(bench.buffers), "_reset_padding", lambda *_: None)
    with pytest.raises((IndexError, RuntimeError)):
        bench.step(decode([0, 1, 2]))


@pytest.mark.parametrize("name", RECORDING)
def test_a_moved_cache_is_found(name: str) -> None:
    bench = prefilled(GraphBench(name, debug=True), [5, 3])
    bench.caches[1] = bench.caches[1].clone()
    with pytest.raises(RuntimeError, match="KV cache was moved"):
        bench.step(decode([0, 1]))


@dataclass(frozen=True)
class Baked(AttentionInputs):
    longest: int = 0


class BakedAttention(RecordableAttention):
    """Puts a number that the host knows into what is recorded, as into a kernel's launch."""

    def begin_step(self, inputs: AttentionInputs) -> AttentionInputs:
        return Baked(**vars(inputs), longest=int(inputs.host_seq_lens.max()))

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        spec: AttentionSpec,
        metadata: Any,
    ) -> None:
        super().forward(query, key, value, out, cache, spec, metadata)
        out.mul_(1.0 + metadata.longest)


@pytest.mark.parametrize("name", ["full", "full_and_piecewise", "full_decode_only"])
@pytest.mark.parametrize("debug", [False, True])
def test_a_number_baked_into_attention_is_wrong_as_on_cuda(name: str, debug: bool) -> None:
    bench = GraphBench(name, attention=BakedAttention(), sizes=(2,), debug=debug)
    for sequence, length in enumerate([4, 9]):
        bench.step([(sequence, random_ids(length))])
    if debug:
        with pytest.raises(RuntimeError, match=r"of 2 tokens .*first after engine::attention #1"):
            bench.step(decode([0, 1]))
    else:
        assert not bench.step(decode([0, 1])).equal


def test_pieces_keep_attention_out_and_so_its_numbers_live() -> None:
    bench = prefilled(GraphBench("piecewise", attention=BakedAttention(), sizes=(2,)), [4, 9])
    assert bench.step(decode([0, 1])).equal


class Frozen(ToyDecoder):
    """Python that isn't the same at each step: what is recorded is what held at the recording."""

    shift = 0

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(input_ids) + self.position(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 1:
                x = x.roll(self.shift, -1)
        return x


@pytest.mark.parametrize("name", RECORDING)
def test_the_segment_of_a_planted_fault_is_named(name: str) -> None:
    model = Frozen(layers=3)
    bench = prefilled(GraphBench(name, model=model, sizes=(2,), debug=True), [4, 9])
    assert bench.step(decode([0, 1])).equal
    model.shift = 1
    with pytest.raises(RuntimeError, match=r"of 2 tokens .*first before engine::attention #3"):
        bench.step(decode([0, 1]))


def checkpoint(label: str, *tensors: torch.Tensor) -> Checkpoint:
    return Checkpoint(label, tensors)


def test_padded_rows_rounding_and_equal_nan_are_no_divergence() -> None:
    a = torch.randn(4, 3)
    a[0, 0] = float("nan")
    b = a * (1 + 1e-6)
    b[3] = 99.0
    pair = [checkpoint("x", a)], [checkpoint("x", b)]
    assert first_divergence(*pair, num_tokens=3, num_padded=4) == ""
    assert "x, tensor 0" in first_divergence(*pair, num_tokens=4, num_padded=4)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (torch.tensor([1.0, float("nan")]), "NaN"),
        (torch.tensor([1.0, 2.1]), "largest difference 0.1"),
        (torch.tensor([1.0, 2.0, 3.0]), "shapes"),
    ],
)
def test_what_differs_is_described(other: torch.Tensor, said: str) -> None:
    first = checkpoint("before op #1", torch.tensor([5]))
    wanted, seen = torch.tensor([1.0, 2.0]), other
    text = first_divergence(
        [first, checkpoint("after op #1", wanted)], [first, checkpoint("after op #1", seen)], 9, 9
    )
    assert text.startswith("after op #1, tensor 0")
    assert said in text


def test_another_number_of_break_ops_is_a_divergence() -> None:
    assert "1 expected, 0" in first_divergence([checkpoint("x")], [], 1, 1)


def test_integers_must_be_equal() -> None:
    a, b = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert first_divergence([checkpoint("x", a)], [checkpoint("x", a)], 2, 2) == ""
    assert "values differ" in first_divergence([checkpoint("x", a)], [checkpoint("x", b)], 2, 2)
