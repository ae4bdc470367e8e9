"""What is asked of an attention implementation, against a dense float64 reference."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import torch

from engine.attention import AttentionSpec
from engine.facts import GraphSupport
from engine.plugin import Numerics
from engine.testing.attention import History
from engine.testing.compiling import ToyDecoder
from engine.testing.conformance.comparing import ask_equal
from engine.testing.conformance.declared import PluginConformance
from engine.testing.conformance.global_state import unchanged
from engine.testing.conformance.suite import Suite, ask, check
from engine.testing.conformance.toys import WholeGraphs
from engine.testing.graph_modes import GraphBench, decode, random_ids
from engine.testing.paged import attention_inputs

SPECS = {
    "plain": AttentionSpec(6, 2, 16, 0.25),
    "a window of 5 tokens": AttentionSpec(4, 1, 16, 0.25, sliding_window=5),
    "a soft cap": AttentionSpec(2, 2, 16, 0.25, soft_cap=2.0),
}


def device_of(suite: type[Suite]) -> str:
    """Return a device of this machine that the implementation runs on; empty without one."""
    devices = suite.plugin().DEVICES
    if devices is None or "cpu" in devices or os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    return "cuda" if "cuda" in devices and torch.cuda.is_available() else ""


def _needs_device(suite: type[Suite]) -> str:
    if device_of(suite):
        return ""
    return f"it runs on {', '.join(sorted(suite.plugin().DEVICES))}, which isn't here"


def _recordable(suite: type[Suite]) -> str:
    if reason := _needs_device(suite):
        return reason
    if suite.plugin().GRAPH_SUPPORT is GraphSupport.NEVER:
        return "it declares GRAPH_SUPPORT = NEVER"
    if os.environ.get("TRITON_INTERPRET") == "1" or device_of(suite) != "cpu":
        return "the simulated graph device records operators of the CPU only"
    return ""


class AttentionConformance(PluginConformance):
    """Checks of an attention implementation.

    Attributes:
        steps: how many random steps `random batches` takes; slow implementations take fewer.
        block_size: tokens in one block.
        dtypes: of queries, keys, values and cache.
    """

    KIND = "attention"
    SETTING = "attention"
    steps: ClassVar[int] = 8
    block_size: ClassVar[int] = 4
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16)

    def history(self, spec: AttentionSpec = SPECS["plain"], **settings: object) -> History:
        """Make a paged history of the implementation."""
        options = {"device": device_of(type(self)), "block_size": self.block_size, **settings}
        return History(self.make(), spec, **options)  # type: ignore[arg-type]  # a check's own words

    def step(
        self, history: History, rows: list[tuple[int, int]], what: str, padding: int = 0
    ) -> None:
        """Ask that a step gives what the reference gives."""
        for row, (got, wanted) in enumerate(history.step(rows, padding=padding)):
            ask_equal(
                got, wanted.to(got.dtype), f"{what}, request {row} of {rows}", Numerics.TOLERANCE
            )

    @check(quick=True, needs=_needs_device)
    def test_prompts_chunks_and_decode(self) -> None:
        """Prompts, chunks of prompts and decode, mixed and alone, equal the reference; with a
        sliding window and a soft cap too.
        """
        for what, spec in SPECS.items():
            history = self.history(spec, shuffle=1)
            a, b, c = (history.add() for _ in range(3))
            self.step(history, [(a, 9), (b, 1)], f"{what}: two prompts")
            self.step(history, [(a, 1), (c, 13), (b, 5)], f"{what}: a mixture", padding=2)
            for _ in range(2):
                self.step(history, [(a, 1), (b, 1), (c, 1)], f"{what}: decode", padding=3)

    @check(needs=_needs_device)
    def test_random_batches(self) -> None:
        """Any batch over scattered blocks equals the reference, in every dtype."""
        for dtype in self.dtypes:
            rng = np.random.default_rng()
            history = self.history(shuffle=int(rng.integers(99)), dtype=dtype, num_blocks=512)
            sequences = [history.add() for _ in range(6)]
            for number in range(self.steps):
                chosen = rng.permutation(sequences)[: rng.integers(1, 7)]
                rows = [(int(s), 1 if number % 2 else int(rng.integers(1, 20))) for s in chosen]
                self.step(history, rows, f"{dtype}, batch {number}", int(rng.integers(0, 3)))

    @check(needs=_needs_device)
    def test_padded_rows_write_nowhere(self) -> None:
        """A row whose slot is -1 writes nothing: the reserved block and the blocks of others stay
        as they are, and its result is finite.
        """
        changed = []
        for padding in (0, 4):
            history = self.history(shuffle=3, fill=7.0)
            a, b = history.add(), history.add()
            self.step(history, [(a, 6), (b, 3)], "two prompts", padding=padding)
            self.step(history, [(a, 1)], "decode of one", padding=padding + bool(padding))
            changed.append(int((history.cache != 7.0).sum()))
        # In the blocks of its own requests an implementation may write what it likes.
        ask(
            changed[0] == changed[1],
            f"{changed[0]} numbers of the cache changed without padding, {changed[1]} with it",
        )

    @check(needs=_needs_device)
    def test_what_a_block_held_before_reaches_nobody(self) -> None:
        """Unwritten memory and what an earlier owner left (infinity, NaN) reach no result."""
        for fill in (float("inf"), float("nan")):
            history = self.history(fill=fill)
            sequences = [history.add() for _ in range(3)]
            for _ in range(5):
                self.step(history, [(s, 1) for s in sequences], f"a cache full of {fill}")

    @check(needs=_needs_device)
    def test_a_request_with_nan_does_not_reach_its_neighbours(self) -> None:
        """One request's NaN stays its own."""
        history = self.history()
        sequences = [history.add() for _ in range(4)]
        self.step(history, [(s, 5) for s in sequences], "four prompts")
        bad = history.sequences[sequences[2]]
        keys = bad.keys[0]
        bad.keys[0] = torch.full_like(keys, float("nan"))
        cache_before = history.cache.clone()
        history.cache.copy_(_poisoned(history, bad.table))
        ask(not torch.equal(cache_before, history.cache), "the cache has no place for a block")
        pairs = history.step([(s, 1) for s in sequences])
        for row in (0, 1, 3):
            got, wanted = pairs[row]
            ask_equal(got, wanted.to(got.dtype), f"request {row} beside one with NaN")

    @check(needs=_needs_device)
    def test_two_engines_of_one_process(self) -> None:
        """Nothing is shared between two engines of one process."""
        one, two = self.history(seed=1), self.history(seed=2)
        pairs = [(one.add(), two.add()) for _ in range(3)]
        self.step(one, [(s, 6) for s, _ in pairs], "the first engine's prompts")
        self.step(two, [(s, 4) for _, s in pairs], "the second engine's prompts")
        for _ in range(2):
            self.step(one, [(s, 1) for s, _ in pairs], "the first engine's decode")
            self.step(two, [(s, 1) for _, s in pairs], "the second engine's decode")

    @check(needs=_needs_device)
    def test_nothing_global_is_left_changed(self) -> None:
        """A step leaves settings, environment and random numbers as they were."""
        history = self.history()
        a = history.add()
        with unchanged("a step"):
            history.step([(a, 5)])
            history.step([(a, 1)])

    @check(needs=_recordable)
    def test_it_can_be_recorded_as_it_says(self) -> None:
        """`GRAPH_SUPPORT` promises a forward that a graph can hold: for decode, or for any batch.
        A replay reads everything from the device tensors.
        """
        bench = GraphBench(
            WholeGraphs(), model=ToyDecoder(2), attention=self.make(), sizes=(1, 2, 4, 8)
        )
        if dropped := [event.dropped for event in bench.captured if event.dropped]:
            ask(held=False, found=f"it says it can be recorded, and recording failed: {dropped[0]}")
        steps: list[Any] = [[("a", random_ids(3))], [("b", random_ids(6))]]
        steps += [decode(["a", "b"]), decode(["b"]), [("a", random_ids(2)), ("b", random_ids(1))]]
        for number, chunks in enumerate(steps):
            result = bench.step(chunks)
            for got, wanted in zip(result.hidden, result.expected, strict=True):
                ask_equal(got, wanted, f"replay {number}, {result.decision}")


def _poisoned(history: History, table: list[int]) -> torch.Tensor:
    """Return the cache with NaN in what belongs to a block of a table.

    Where a block lies is the plugin's business: it is found by what a write to it changes.
    """
    probe = torch.zeros_like(history.cache)
    spec, size = history.spec, history.block_size
    ones = torch.ones(
        size, spec.num_kv_heads, spec.head_size, dtype=history.dtype, device=history.device
    )
    query = torch.ones(
        size, spec.num_heads, spec.head_size, dtype=history.dtype, device=history.device
    )
    inputs = attention_inputs([size], [size], [[table[0]]], size, device=history.device)
    metadata = history.plugin.begin_step(inputs)
    history.plugin.forward(query, ones, ones, torch.empty_like(query), probe, spec, metadata)
    return torch.where(probe != 0, torch.full_like(probe, float("nan")), history.cache)
