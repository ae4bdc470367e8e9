"""Plugins with one fault each, for the tools that must find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch
    from torch import fx

    from engine.batch import BatchShape
    from engine.recording import Replay as Recorded
    from engine.strategies import CompiledModel as Compiled
    from engine.strategies import CompileJob, GraphJob, ModelInputs

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_pass() -> Any:
    from engine.strategies import Pass

    class Louder(Pass):
        """Makes every activation a little louder than it is."""

        NAME = "louder"
        SUMMARY = "a pass with a fault"
        STAGE = "graph"

        def run(self, graph: fx.GraphModule) -> int:
            import torch

            found = graph.graph.find_nodes(op="call_function", target=torch.nn.functional.silu)
            for node in found:
                with graph.graph.inserting_after(node):
                    louder = graph.graph.call_function(torch.mul, (node, 1.5))
                louder.meta = dict(node.meta)
                node.replace_all_uses_with(louder)
                louder.args = (node, 1.5)
            return len(found)

    return Louder


@hookimpl
def engine_register_backend() -> Any:
    from engine.strategies import Backend

    class Sloppy(Backend):
        """Runs graphs as they are, except the second one that it is given."""

        NAME = "sloppy"
        SUMMARY = "a backend with a fault"

        given = 0

        def compile(
            self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
        ) -> Callable[..., Any]:
            self.given += 1
            if self.given != 2:
                return graph.forward

            def wrong(*args: Any) -> Any:
                return tuple(value * 1.5 for value in graph.forward(*args))

            return wrong

    return Sloppy


@hookimpl
def engine_register_compile_mode() -> Any:
    from engine.strategies import CompiledModel, CompileReport, CompileStrategy

    class Hasty(CompileStrategy):
        """Forgets the last bit of the work when there are three tokens."""

        NAME = "hasty"
        SUMMARY = "a compile mode with a fault"
        USES_BACKEND = False

        def compile(self, job: CompileJob) -> Compiled:
            def call(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
                hidden: torch.Tensor = job.model(input_ids, positions)
                return hidden * 2 if input_ids.shape[0] == 3 else hidden

            return CompiledModel(call, CompileReport())

    return Hasty


@hookimpl
def engine_register_cudagraph_mode() -> Any:
    from engine.facts import GraphSupport
    from engine.recording import RecordingStrategy, Replay, mixed_shape

    class Stale(RecordingStrategy):
        """Replays a graph once, and then hands out what it gave."""

        NAME = "stale"
        SUMMARY = "a graph mode with a fault"
        KINDS = ("stale",)
        MIN_SUPPORT = GraphSupport.NEVER

        def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
            return tuple(mixed_shape(size, min(size, job.max_num_seqs)) for size in job.sizes)

        def record(self, inputs: ModelInputs) -> Recorded:
            call, held = self.call, list[Any]()

            def run() -> Any:
                if not held:
                    held.append(call(inputs).clone())
                return held[0]

            return Replay(run)

    return Stale
