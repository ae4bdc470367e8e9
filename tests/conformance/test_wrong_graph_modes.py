"""For each guarantee of a graph mode there is one that breaks it, and the kit finds it by name."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from engine.batch import BatchShape
from engine.events import EventBus
from engine.facts import GraphSupport
from engine.forward_context import current
from engine.recording import Replay
from engine.strategies import Decision, GraphJob, ModelInputs
from engine.testing import GraphStrategyConformance, PluginConformance
from engine.testing.conformance.toys import WholeGraphs


class FrozenInput(WholeGraphs):
    def record(self, inputs: ModelInputs) -> Replay:
        return super().record(ModelInputs(inputs.input_ids.clone(), inputs.positions.clone()))


class FrozenContext(WholeGraphs):
    """Holds the lengths of the step that was met first."""

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        lengths = current().metadata.seq_lens
        kept = self.__dict__.setdefault("kept", {}).setdefault(decision.padded, lengths.clone())
        lengths.copy_(kept)
        return super().run(decision, inputs)


class PaddingWritesALiveRow(WholeGraphs):
    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        slots = current().metadata.slots
        slots[slots < 0] = 5
        return super().run(decision, inputs)


class StaleRowsWrite(WholeGraphs):
    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        slots = current().metadata.slots
        earlier = self.__dict__.setdefault("earlier", torch.full((64,), -1))
        stale = slots < 0
        slots[stale] = earlier[: len(slots)][stale]
        earlier[: len(slots)] = slots
        return super().run(decision, inputs)


class PaddedRowsLeak(WholeGraphs):
    def call(self, inputs: ModelInputs) -> torch.Tensor:
        hidden = super().call(inputs)
        return hidden + 0 * hidden.sum()


class ReadsTheWholeBuffer(WholeGraphs):
    """Adds what lies in the rows behind the batch."""

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        whole = self.__dict__.setdefault("whole", inputs.input_ids)
        if len(inputs.input_ids) >= len(whole):
            self.whole = whole = inputs.input_ids
        live = current().shape.num_tokens
        extra: torch.Tensor = whole[live:].sum()
        return super().run(decision, inputs) + extra


class SwallowsFailures(WholeGraphs):
    def record(self, inputs: ModelInputs) -> Replay:
        try:
            return super().record(inputs)
        except Exception:  # noqa: BLE001 - the fault under test
            return Replay(lambda: self.call(inputs))


class GivesUpEverything(WholeGraphs):
    """One failed capture costs all shapes."""

    def prepare(self, job: GraphJob) -> None:
        super().prepare(job)
        if len(self._replays) < len(self.plan(job)):
            self._replays.clear()
            self._offer(())


class IgnoresAbort(WholeGraphs):
    def prepare(self, job: GraphJob) -> None:
        super().prepare(replace(job, abort_on_failure=False))


class IgnoresTheBudget(WholeGraphs):
    """Records what wasn't asked for, and whatever it costs."""

    def prepare(self, job: GraphJob) -> None:
        if job.memory_budget is not None:
            job = replace(job, memory_budget=None, sizes=(*job.sizes, 17, 18, 19, 20))
        super().prepare(job)


class SmallestFirst(WholeGraphs):
    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        return tuple(reversed(super().plan(job)))


class RecordsTheUnrecordable(WholeGraphs):
    def refusal(self) -> str:
        return ""


class LosesTheLiveBatch(WholeGraphs):
    """Returns zeros for the step that is recorded while it is met first."""

    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        hidden = super().run(decision, inputs)
        first = decision.reason and decision.kind != "eager"
        return torch.zeros_like(hidden) if first else hidden


class PadsTooLittle(WholeGraphs):
    def dispatch(self, shape: BatchShape) -> Decision:
        decision = super().dispatch(shape)
        small = replace(decision.padded, num_reqs=1)
        return replace(decision, padded=small) if decision.kind != "eager" else decision


class PadsWhatIsEager(WholeGraphs):
    def dispatch(self, shape: BatchShape) -> Decision:
        decision = super().dispatch(shape)
        padded = replace(decision.padded, num_tokens=decision.padded.num_tokens + 1)
        return replace(decision, padded=padded) if decision.kind == "eager" else decision


class GivesNoReason(WholeGraphs):
    def dispatch(self, shape: BatchShape) -> Decision:
        return replace(super().dispatch(shape), reason="")


class ChangesItsMind(WholeGraphs):
    turns = 0

    def dispatch(self, shape: BatchShape) -> Decision:
        self.turns += 1
        return super().dispatch(shape) if self.turns % 2 else Decision("eager", shape, "a whim")


class DecidesSlowly(WholeGraphs):
    def dispatch(self, shape: BatchShape) -> Decision:
        time.sleep(2e-5)
        return super().dispatch(shape)


class UsesAnotherKind(WholeGraphs):
    KINDS = ("whole", "never")


class CallsItOtherwise(WholeGraphs):
    def dispatch(self, shape: BatchShape) -> Decision:
        decision = super().dispatch(shape)
        return decision if decision.kind == "eager" else replace(decision, kind="other")


class SaysItNeedsNoGraphs(WholeGraphs):
    NEEDS_GRAPHS = False


class RecordsNothing(WholeGraphs):
    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        return ()


class TakesAnyAttention(WholeGraphs):
    MIN_SUPPORT = GraphSupport.NEVER


class TakesDecodeAttention(WholeGraphs):
    MIN_SUPPORT = GraphSupport.UNIFORM_DECODE


class WrongInOneElement(WholeGraphs):
    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        hidden = super().run(decision, inputs).clone()
        if current().shape.num_tokens == 3:
            hidden[2, 5] += 1e-3
        return hidden


class TakesAnyInputs(WholeGraphs):
    def _check_addresses(self, shape: BatchShape, inputs: ModelInputs) -> None:
        pass


class SharesItsGraphs(WholeGraphs):
    shared: ClassVar[dict[Any, Any]] = {}

    def prepare(self, job: GraphJob) -> None:
        super().prepare(job)
        self.shared.update(self._replays)
        self._replays = self.shared
        self._check_addresses = lambda *_: None  # type: ignore[method-assign]  # hides the fault


class LeavesTheEnvironment(WholeGraphs):
    def prepare(self, job: GraphJob) -> None:
        super().prepare(job)
        os.environ["A_GRAPH_MODE"] = "was here"


class DrawsRandomNumbers(WholeGraphs):
    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        torch.rand(1)
        return super().run(decision, inputs)


class KeepsItsGraphs(WholeGraphs):
    kept: ClassVar[list[Any]] = []

    def close(self) -> None:
        self.kept.append(self._replays)


class TellsNothing(WholeGraphs):
    def prepare(self, job: GraphJob) -> None:
        super().prepare(replace(job, events=EventBus()))


WRONG = {
    FrozenInput: ["inputs_a_b_a", "any_batch_gives_what_it_gives_without_graphs"],
    FrozenContext: ["the_same_padded_shape_with_other_context_lengths"],
    PaddingWritesALiveRow: ["nan_in_padded_rows_reaches_neither_live_rows_nor_a_block"],
    StaleRowsWrite: ["a_row_that_left_doesnt_write_into_its_old_block"],
    PaddedRowsLeak: ["nan_in_padded_rows_reaches_neither_live_rows_nor_a_block"],
    ReadsTheWholeBuffer: ["poisoned_buffers_reach_nobody"],
    SwallowsFailures: ["a_failed_capture_costs_that_shape_only"],
    GivesUpEverything: ["a_failed_capture_costs_that_shape_only"],
    IgnoresAbort: ["abort_makes_a_failed_capture_an_error"],
    IgnoresTheBudget: ["a_memory_budget_holds"],
    SmallestFirst: [
        "every_recording_is_told_once",
        "smaller_graphs_fit_in_the_memory_of_larger_ones",
    ],
    RecordsTheUnrecordable: [
        "what_cant_be_recorded_isnt",
        "an_unknown_operator_is_never_recorded_blindly",
    ],
    LosesTheLiveBatch: ["a_recording_on_the_live_batch_computes_it_as_well"],
    PadsTooLittle: ["a_decision_is_pure_covers_the_batch_and_says_why"],
    PadsWhatIsEager: ["a_batch_beyond_every_shape_runs_as_it_is"],
    GivesNoReason: ["a_decision_is_pure_covers_the_batch_and_says_why"],
    ChangesItsMind: ["a_decision_is_pure_covers_the_batch_and_says_why"],
    DecidesSlowly: ["a_decision_takes_microseconds"],
    UsesAnotherKind: ["every_kind_is_used_and_no_other"],
    CallsItOtherwise: ["a_decision_is_pure_covers_the_batch_and_says_why"],
    SaysItNeedsNoGraphs: ["graphs_are_used_if_and_only_if_it_says_so"],
    RecordsNothing: ["graphs_are_used_if_and_only_if_it_says_so"],
    TakesAnyAttention: ["it_keeps_to_what_attention_allows"],
    TakesDecodeAttention: ["it_keeps_to_what_attention_allows"],
    WrongInOneElement: ["padded_odd_and_largest_batches"],
    TakesAnyInputs: ["inputs_of_another_length_are_refused"],
    SharesItsGraphs: ["two_engines_of_one_process"],
    LeavesTheEnvironment: ["nothing_global_is_left_changed"],
    DrawsRandomNumbers: ["nothing_global_is_left_changed"],
    KeepsItsGraphs: ["close_frees_the_graphs"],
    TellsNothing: ["every_recording_is_told_once"],
}
CASES = [(plugin, check) for plugin, checks in WRONG.items() for check in checks]
CHECKS = sorted({check for _, check in CASES})


@pytest.mark.parametrize(("plugin", "check"), CASES)
def test_the_kit_finds(catches: Any, plugin: type, check: str) -> None:
    said = catches(GraphStrategyConformance, plugin, check)
    assert "the contract asks" in said


@pytest.mark.parametrize("check", CHECKS)
def test_what_keeps_the_contract_passes(passes: Any, check: str) -> None:
    passes(GraphStrategyConformance, WholeGraphs, check)


def test_every_check_of_a_graph_mode_has_something_to_find() -> None:
    own = GraphStrategyConformance.checks().keys() - PluginConformance.checks().keys()
    assert {name.removeprefix("test_") for name in own} == set(CHECKS)


def test_a_wrong_element_is_named_with_shape_and_place(catches: Any) -> None:
    said = catches(GraphStrategyConformance, WrongInOneElement, "padded_odd_and_largest_batches")
    assert "cudagraph_modes/WrongInOneElement" in said
    assert "Every number of rows is right" in said
    assert "3 rows of decode" in said
    assert "(1, 16) torch.float32" in said
    assert "first at [0, 5]" in said
