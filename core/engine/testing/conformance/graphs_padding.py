"""What is asked of padding: it changes no live row and no live KV block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from engine.testing.compiling import ToyDecoder
from engine.testing.conformance.suite import Suite, ask, check
from engine.testing.graph_modes import GraphBench, decode, random_ids

LAYERS = 2


class PaddingChecks(Suite):
    """The part of a graph strategy's suite that concerns padded rows."""

    if TYPE_CHECKING:
        bench: Callable[..., GraphBench]
        ask_step: Callable[..., Any]
        prefilled: Callable[..., GraphBench]

    @check(quick=True)
    def test_padded_odd_and_largest_batches(self) -> None:
        """Every number of rows is right: padded by one or more, odd, the largest recorded, and
        one below and above it.
        """
        bench = self.bench(sizes=(1, 5, 8), max_num_seqs=9, max_num_tokens=32)
        self.prefilled(bench, [2] * 9)
        for count in (1, 3, 4, 5, 6, 7, 8, 9, 8, 3):
            self.ask_step(bench.step(decode(list(range(count)))), f"{count} rows of decode")
        for count in (1, 3, 6, 7):
            chunks = [(0, random_ids(2)), *decode(list(range(1, count)))]
            self.ask_step(bench.step(chunks), f"a mixed batch of {count + 1} tokens")

    @check()
    def test_nan_in_padded_rows_reaches_neither_live_rows_nor_a_block(self) -> None:
        """Whatever padded rows compute doesn't leak (as 0 · NaN would): neither into live rows,
        nor into the block that belongs to nobody, nor into a live one.
        """
        model = ToyDecoder(LAYERS)
        model.embedding.weight[0] = float("nan")  # the token that padded rows hold
        bench = self.prefilled(self.bench(model=model, sizes=(4,)), [5, 3, 6])
        reserved = [bench.reserved(layer) for layer in range(LAYERS)]
        for _ in range(4):
            self.ask_step(bench.step(decode([0, 1, 2])), "three rows beside NaN")
        for layer, before in enumerate(reserved):
            ask(
                torch.equal(bench.reserved(layer), before),
                f"padded rows wrote into the reserved block of layer {layer}",
            )
            for name in range(3):
                ask(
                    bench.written(name, layer).isfinite().all(),
                    f"NaN is in the blocks of sequence {name}, layer {layer}",
                )

    @check()
    def test_poisoned_buffers_reach_nobody(self) -> None:
        """What an earlier, larger batch left in the static buffers is not read again."""
        bench = self.prefilled(self.bench(sizes=(2, 4), max_num_seqs=8), [3, 5, 2, 4])
        self.ask_step(bench.step(decode([0, 1, 2, 3])), "four rows")
        debug = self.bench(sizes=(2, 4), max_num_seqs=8, debug=True)
        self.prefilled(debug, [3, 5, 2, 4])
        for one, what in ((bench, "after a larger batch"), (debug, "poisoned before each step")):
            for names in ([0, 1, 2], [3], [1, 2], [0, 1, 2, 3], [2]):
                self.ask_step(one.step(decode(names)), f"rows {names}, buffers {what}")

    @check()
    def test_a_row_that_left_doesnt_write_into_its_old_block(self) -> None:
        """A request ends and its blocks go to a new one: a replay with the stale row padded must
        leave the new owner's keys and values alone.
        """
        bench = self.prefilled(self.bench(sizes=(4,)), [5, 3, 6, 2])
        for _ in range(3):
            self.ask_step(bench.step(decode([0, 1, 2, 3])), "four rows")
        bench.release(3)
        # Long enough to take over the blocks that were freed.
        self.ask_step(bench.step([("new", random_ids(7))]), "the new owner's prompt")
        before = [bench.written("new", layer) for layer in range(LAYERS)]
        self.ask_step(bench.step(decode([0, 1, 2])), "three rows of four")
        for layer, kept in enumerate(before):
            ask(
                torch.equal(bench.written("new", layer), kept),
                f"a padded row wrote into a live block of layer {layer}",
            )
        self.ask_step(bench.step([("new", random_ids(1)), *decode([0])]), "the new owner's step")
