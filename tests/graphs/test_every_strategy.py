"""What every strategy that records must keep, whatever the batches, on the simulated device."""

from __future__ import annotations

import pytest
import torch

from engine.batch import BatchShape
from engine.testing.compiling import ToyDecoder
from engine.testing.graph_modes import GraphBench, decode, prefilled, random_ids, random_steps

RECORDING = ["full", "full_and_piecewise", "full_decode_only", "piecewise"]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", RECORDING)
def test_any_batch_gives_what_it_gives_without_graphs(name: str, lazy: bool) -> None:
    bench = GraphBench(name, lazy=lazy)
    for number, result in random_steps(bench, 24, shuffle=True):
        assert result.equal, (number, result.decision)
    kinds = {bench.strategy.dispatch(BatchShape.decode(n)).kind for n in (1, 2, 3, 4)}
    assert kinds <= set(bench.strategy.KINDS)


@pytest.mark.parametrize("name", RECORDING)
def test_largest_first_each_once_as_planned(name: str) -> None:
    bench = GraphBench(name, sizes=(1, 4, 8, 2), max_num_seqs=6)
    planned = [shape.num_tokens for shape in bench.strategy.plan(bench.job)]
    assert [event.num_tokens for event in bench.captured] == planned
    for kind in bench.strategy.KINDS:
        sizes = bench.recorded(kind)
        assert sizes == sorted(sizes, reverse=True)
    assert all(not event.dropped for event in bench.captured)


@pytest.mark.parametrize("name", RECORDING)
def test_smaller_graphs_fit_in_the_memory_of_larger_ones(name: str) -> None:
    one = GraphBench(name, sizes=(8,), max_num_seqs=8).device.memory()
    many = GraphBench(name, sizes=(1, 2, 3, 4, 5, 6, 7, 8), max_num_seqs=8).device.memory()
    assert many <= 1.3 * one


@pytest.mark.parametrize("name", RECORDING)
def test_a_batch_beyond_every_shape_runs_as_it_is(name: str) -> None:
    bench = GraphBench(name, sizes=(1, 2))
    result = bench.step([("a", random_ids(7)), ("b", random_ids(3))])
    assert result.equal
    assert result.decision.kind == "eager"
    assert result.decision.padded == BatchShape(10, 2, 7, uniform_decode=False)
    assert result.decision.reason


@pytest.mark.parametrize("name", RECORDING)
def test_nan_in_padded_rows_reaches_neither_live_rows_nor_a_block(name: str) -> None:
    """Whatever padded rows compute must not leak, as 0 · NaN would."""
    model = ToyDecoder(layers=2)
    model.embedding.weight[0] = float("nan")  # the token that padded rows hold
    bench = prefilled(GraphBench(name, model=model, sizes=(4, 8)), [5, 3, 6])
    reserved = [bench.reserved(layer) for layer in range(2)]
    for _ in range(3):
        result = bench.step(decode([0, 1, 2]))
        assert result.decision.padded.num_tokens == 4
        assert not result.decision.reason
        assert result.equal
    for layer, before in enumerate(reserved):
        assert torch.equal(bench.reserved(layer), before)
        assert all(bench.written(name, layer).isfinite().all() for name in range(3))


@pytest.mark.parametrize("name", RECORDING)
def test_a_row_that_left_doesnt_write_into_its_old_block(name: str) -> None:
    bench = prefilled(GraphBench(name, sizes=(4,)), [5, 3, 6, 2])
    assert bench.step(decode([0, 1, 2, 3])).equal
    bench.release(3)
    # Long enough to take over the blocks that were freed.
    newcomer = bench.step([("new", random_ids(4))])
    assert newcomer.equal
    before = bench.written("new")
    result = bench.step(decode([0, 1, 2]))
    assert result.decision.padded == BatchShape.decode(4) or name == "piecewise"
    assert result.equal
    assert torch.equal(bench.written("new"), before)
    assert bench.step([("new", random_ids(1)), *decode([0])]).equal


@pytest.mark.parametrize("name", RECORDING)
def test_inputs_a_b_a(name: str) -> None:
    bench = prefilled(GraphBench(name, sizes=(2,)), [4, 4])
    first, second = decode([0, 1]), decode([0, 1])
    outcomes = []
    for chunks in (first, second, first):
        for sequence in bench.tokens.values():
            del sequence.token_ids[4:]
            sequence.num_computed_tokens = 4
        bench.reference.lengths = dict.fromkeys(bench.reference.lengths, 4)
        result = bench.step(chunks)
        assert result.equal
        assert not result.decision.reason
        outcomes.append(torch.cat(result.hidden))
    assert torch.equal(outcomes[0], outcomes[2])
    assert not torch.equal(outcomes[0], outcomes[1])


@pytest.mark.parametrize("name", RECORDING)
def test_the_same_padded_shape_with_other_context_lengths(name: str) -> None:
    bench = prefilled(GraphBench(name, sizes=(2,)), [1, 2, 25, 24])
    for names in ([0, 1], [2, 3], [1, 2], [0, 3], [3]):
        result = bench.step(decode(names))
        assert result.equal
        assert result.decision.padded.num_tokens == 2


@pytest.mark.parametrize("name", RECORDING)
def test_inputs_elsewhere_or_of_another_length_are_refused(name: str) -> None:
    bench = prefilled(GraphBench(name, sizes=(2, 4)), [5, 3])
    shape = BatchShape.decode(2)
    decision = bench.strategy.dispatch(shape)
    inputs, attention = bench.buffers.fill_dummy(shape)
    longer, _ = bench.buffers.fill_dummy(BatchShape.decode(4))
    moved = type(inputs)(inputs.input_ids.clone(), inputs.positions)
    with torch.inference_mode(), bench.context(shape, attention):
        for wrong in (longer, moved):
            with pytest.raises(RuntimeError, match=r"graph of 2 tokens reads static buffers"):
                bench.strategy.run(decision, wrong)
        bench.strategy.run(decision, inputs)
