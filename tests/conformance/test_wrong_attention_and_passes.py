"""Attention and passes that break one guarantee each, and are found by name."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import fx

from engine.attention import AttentionInputs, AttentionSpec
from engine.facts import GraphSupport
from engine.strategies import Pass
from engine.testing import AttentionConformance, PassConformance, PluginConformance
from engine.testing.conformance.toys import HostAttention
from engine.testing.recordable_attention import RecordableAttention


class IgnoresTheWindow(RecordableAttention):
    def forward(self, *args: Any) -> None:
        spec: AttentionSpec = args[5]
        plain = AttentionSpec(spec.num_heads, spec.num_kv_heads, spec.head_size, spec.scale)
        query, key, value, out, cache, _, metadata = args
        super().forward(query, key, value, out, cache, plain, metadata)


class WrongInLongContexts(RecordableAttention):
    def forward(self, *args: Any) -> None:
        super().forward(*args)
        if int(args[6].seq_lens.max()) > 12:
            args[3][0, 0, 0] += 0.01


class WritesTheReservedBlock(RecordableAttention):
    def forward(self, *args: Any) -> None:
        super().forward(*args)
        if (args[6].slots < 0).any():
            args[4][:, 0] = 1.0


class ReadsUnwrittenMemory(RecordableAttention):
    def forward(self, *args: Any) -> None:
        super().forward(*args)
        args[3].add_(0 * args[4][:, 1:].sum())


class MixesRequests(RecordableAttention):
    def forward(self, *args: Any) -> None:
        super().forward(*args)
        args[3].add_(0 * args[3].sum())


class SharesItsStep(RecordableAttention):
    last: ClassVar[list[torch.Tensor]] = []

    def begin_step(self, inputs: AttentionInputs) -> AttentionInputs:
        self.last.append(inputs.seq_lens)
        return inputs

    def forward(self, *args: Any) -> None:
        super().forward(*args)
        if len(self.last) > 1 and self.last[-2].shape == self.last[-1].shape:
            args[3].add_((self.last[-2] - self.last[-1]).clamp(min=0).sum())


class DrawsRandomNumbers(RecordableAttention):
    def begin_step(self, inputs: AttentionInputs) -> AttentionInputs:
        torch.rand(1)
        return inputs


class SaysItCanBeRecorded(HostAttention):
    GRAPH_SUPPORT = GraphSupport.ALWAYS


WRONG_ATTENTION = {
    IgnoresTheWindow: "prompts_chunks_and_decode",
    WrongInLongContexts: "random_batches",
    WritesTheReservedBlock: "padded_rows_write_nowhere",
    ReadsUnwrittenMemory: "what_a_block_held_before_reaches_nobody",
    MixesRequests: "a_request_with_nan_does_not_reach_its_neighbours",
    SharesItsStep: "two_engines_of_one_process",
    DrawsRandomNumbers: "nothing_global_is_left_changed",
    SaysItCanBeRecorded: "it_can_be_recorded_as_it_says",
}


class Doubling(Pass):
    """Turns `x + x` into `2 * x`: keeps the contract."""

    NAME = "doubling"
    SUMMARY = "turn x + x into 2 * x"

    def change(self, graph: fx.GraphModule, node: fx.Node) -> None:
        with graph.graph.inserting_after(node):
            new = graph.graph.call_function(torch.mul, (node.args[0], 2))
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)

    def run(self, graph: fx.GraphModule) -> int:
        fired = 0
        for node in list(graph.graph.nodes):
            doubled = node.op == "call_function" and getattr(node.target, "__name__", "") == "add"
            if doubled and len(node.args) == 2 and node.args[0] is node.args[1]:
                self.change(graph, node)
                fired += 1
        return fired


class ChangesTheMeaning(Doubling):
    def change(self, graph: fx.GraphModule, node: fx.Node) -> None:
        with graph.graph.inserting_after(node):
            new = graph.graph.call_function(torch.mul, (node.args[0], 2.001))
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)


class NeverFires(Doubling):
    def run(self, graph: fx.GraphModule) -> int:
        return 0


class CountsWrongly(Doubling):
    def run(self, graph: fx.GraphModule) -> int:
        return super().run(graph) * 0


class HasMoods(Doubling):
    turns: ClassVar[list[int]] = []

    def run(self, graph: fx.GraphModule) -> int:
        self.turns.append(0)
        return super().run(graph) if len(self.turns) % 2 else 0


class StandsNowhere(Doubling):
    STAGE = "nowhere"


class TakesSizesForConstants(Doubling):
    def change(self, graph: fx.GraphModule, node: fx.Node) -> None:
        with graph.graph.inserting_after(node):
            new = graph.graph.call_function(_needs_values, (node.args[0],))
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)


class SeedsTheRandomNumbers(Doubling):
    def run(self, graph: fx.GraphModule) -> int:
        torch.manual_seed(1)
        return super().run(graph)


def _needs_values(x: torch.Tensor) -> torch.Tensor:
    """Stand for an operator without a fake implementation."""
    if isinstance(x, torch._subclasses.FakeTensor):
        raise NotImplementedError("there is no fake implementation")
    return x * 2


WRONG_PASSES = {
    ChangesTheMeaning: "a_graph_means_the_same_afterwards",
    NeverFires: "it_fires_on_its_example",
    CountsWrongly: "its_count_is_honest",
    HasMoods: "the_same_graph_gives_the_same",
    StandsNowhere: "its_place_among_the_passes_exists",
    TakesSizesForConstants: "new_nodes_can_be_compiled",
    SeedsTheRandomNumbers: "nothing_global_is_left_changed",
}
EXAMPLE: dict[str, Any] = {"example": staticmethod(lambda x: x + x)}


@pytest.mark.parametrize(("plugin", "check"), WRONG_ATTENTION.items())
def test_the_kit_finds_attention(catches: Any, plugin: type, check: str) -> None:
    assert "the contract asks" in catches(AttentionConformance, plugin, check)


@pytest.mark.parametrize("check", WRONG_ATTENTION.values())
def test_attention_that_keeps_the_contract_passes(passes: Any, check: str) -> None:
    passes(AttentionConformance, RecordableAttention, check)


@pytest.mark.parametrize(("plugin", "check"), WRONG_PASSES.items())
def test_the_kit_finds_a_pass(catches: Any, plugin: type, check: str) -> None:
    assert "the contract asks" in catches(PassConformance, plugin, check, **EXAMPLE)


@pytest.mark.parametrize("check", WRONG_PASSES.values())
def test_a_pass_that_keeps_the_contract_passes(passes: Any, check: str) -> None:
    passes(PassConformance, Doubling, check, **EXAMPLE)


@pytest.mark.parametrize(
    ("suite", "wrong"),
    [(AttentionConformance, WRONG_ATTENTION), (PassConformance, WRONG_PASSES)],
)
def test_every_check_has_something_to_find(suite: Any, wrong: dict[type, str]) -> None:
    own = suite.checks().keys() - PluginConformance.checks().keys()
    assert {name.removeprefix("test_") for name in own} == set(wrong.values())
