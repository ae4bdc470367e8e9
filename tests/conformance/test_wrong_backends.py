"""For each guarantee of a backend there is one that breaks it, and the kit finds it by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import fx

from engine.testing import BackendConformance, PluginConformance
from engine.testing.conformance.toys import ExactBackend

Call = Callable[..., Any]


class Wrapped(ExactBackend):
    """Calls `wrap` on what it made; keeps the contract if that does nothing."""

    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        return call

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Call:
        call = super().compile(graph, example_inputs, dynamic=dynamic)
        return self.wrap(call, example_inputs, dynamic=dynamic)


class WrongForLargeSizes(Wrapped):
    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        return lambda x, w, i: call(x * (1.01 if len(x) > 30 else 1), w, i)


class WrongForConstantSizes(Wrapped):
    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        return call if dynamic else lambda x, w, i: call(x * 1.01, w, i)


class FreezesTheWeights(Wrapped):
    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        kept: list[torch.Tensor] = []

        def run(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> Any:
            kept.append(w)
            return call(x, kept[0], i)

        return run


class OneOutputBuffer(Wrapped):
    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        buffer = torch.empty(64, 8)

        def run(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> Any:
            hidden, ids = call(x, w, i)
            out = buffer[: len(hidden)]
            out.copy_(hidden)
            return out, ids

        return run


class WritesItsInput(Wrapped):
    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        return lambda x, w, i: (call(x, w, i), x.add_(1))[0]


class ReadsFromTheStart(Wrapped):
    """Forgets that an argument may lie somewhere in a buffer."""

    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        return lambda x, w, i: call(x.as_strided(x.shape, x.stride(), 0), w, i)


class ChangesTheGraph(ExactBackend):
    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Call:
        call = fx.GraphModule(graph, graph.graph).forward
        node = next(node for node in graph.graph.nodes if node.op.startswith("call"))
        with graph.graph.inserting_after(node):
            graph.graph.call_function(torch.neg, (node,))
        graph.recompile()
        return call


class LeavesTheEnvironment(ExactBackend):
    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Call:
        os.environ["A_BACKEND"] = "was here"
        return super().compile(graph, example_inputs, dynamic=dynamic)


class SavesNothing(ExactBackend):
    def save(self, compiled: Call) -> bytes | None:
        return None


class SavesInSecret(ExactBackend):
    CACHEABLE = False


class LoadsAnything(ExactBackend):
    def load(self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Call:
        return graph.forward


class LoadsWithAnotherError(ExactBackend):
    def load(self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Call:
        return self._kept[artifact]


class LoadsSomethingElse(ExactBackend):
    def load(self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Call:
        call = super().load(artifact, graph, example_inputs)
        return lambda x, w, i: call(x + 1e-3, w, i)


class SavesAPath(ExactBackend):
    def save(self, compiled: Call) -> bytes | None:
        return (super().save(compiled) or b"") + str(Path.cwd()).encode()


class NotForTorch(ExactBackend):
    def torch_backend(self) -> Call:
        return lambda graph, inputs: lambda *args: [a * 2 for a in graph(*args)]


class RemembersWhenReplayed(Wrapped):
    """Gives at once what it gave for the same ids: a graph that holds that holds nothing."""

    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        kept: dict[tuple[int, ...], Any] = {}
        return lambda x, w, i: kept.setdefault(tuple(i.tolist()), call(x, w, i))


class SharesItsCode(ExactBackend):
    last: ClassVar[list[Any]] = []

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Call:
        self.last.append(graph.forward)
        return lambda *args: self.last[-1](*args)


class RunsBreakOpsOnce(Wrapped):
    """Keeps what it gave for a number of tokens."""

    def wrap(self, call: Call, example: Sequence[Any], *, dynamic: bool) -> Call:
        kept: dict[int, Any] = {}
        return lambda x, w, i: (
            kept[len(x)] if len(x) in kept else kept.setdefault(len(x), call(x, w, i))
        )


WRONG = {
    RunsBreakOpsOnce: "a_break_op_in_a_graph_runs_each_time",
    WrongForLargeSizes: "every_number_of_tokens_of_a_range",
    WrongForConstantSizes: "one_exact_number_of_tokens",
    FreezesTheWeights: "inputs_a_b_a",
    OneOutputBuffer: "a_result_outlives_the_next_call",
    WritesItsInput: "a_result_outlives_the_next_call",
    ReadsFromTheStart: "inputs_may_be_views",
    ChangesTheGraph: "the_graph_is_left_as_it_is",
    LeavesTheEnvironment: "nothing_global_is_left_changed",
    SavesNothing: "artifacts_exist_if_and_only_if_it_says_so",
    SavesInSecret: "artifacts_exist_if_and_only_if_it_says_so",
    LoadsAnything: "a_bad_artifact_is_a_value_error",
    LoadsWithAnotherError: "a_bad_artifact_is_a_value_error",
    LoadsSomethingElse: "a_saved_artifact_gives_the_same",
    SavesAPath: "an_artifact_holds_no_path_of_this_machine",
    NotForTorch: "torch_compile_takes_it",
    RemembersWhenReplayed: "what_it_makes_can_be_recorded",
    SharesItsCode: "two_instances_of_one_process",
}


@pytest.mark.parametrize(("plugin", "check"), WRONG.items())
def test_the_kit_finds(catches: Any, plugin: type, check: str) -> None:
    said = catches(BackendConformance, plugin, check)
    assert "the contract asks" in said


@pytest.mark.parametrize("check", sorted(set(WRONG.values())))
def test_what_keeps_the_contract_passes(passes: Any, check: str) -> None:
    passes(BackendConformance, ExactBackend, check)


def test_every_check_of_a_backend_has_something_to_find() -> None:
    own = BackendConformance.checks().keys() - PluginConformance.checks().keys()
    assert {name.removeprefix("test_") for name in own} == set(WRONG.values())
