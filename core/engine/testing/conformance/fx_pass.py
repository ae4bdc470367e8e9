"""What is asked of an FX pass, on a toy decoder and on the example that its author gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import fx

from engine.passes import STAGES, apply_passes, order_passes
from engine.plugin import Numerics
from engine.registry import Registry
from engine.strategies import Pass
from engine.testing.compiling import ToyDecoder, compile_job, run_step
from engine.testing.conformance.comparing import ask_equal
from engine.testing.conformance.declared import PluginConformance
from engine.testing.conformance.global_state import unchanged
from engine.testing.conformance.suite import Suite, ask, check
from engine.tracing import Traced, trace_model

TOKENS = 16
Example = Callable[[torch.Tensor], torch.Tensor]


class _WithExample(ToyDecoder):
    """A decoder whose result goes through the author's example."""

    def __init__(self, example: Example) -> None:
        super().__init__(2)
        self.example = example

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.example(super().forward(input_ids, positions)) + 0.5


def _has_example(suite: type[Suite]) -> str:
    return "" if suite.__dict__.get("example") else "no `example` is given that it should fire on"


class PassConformance(PluginConformance):
    """Checks of an FX pass.

    Attributes:
        example: `hidden [T, 16] -> [T, …]`, something that the pass must fire on.
    """

    KIND = "passes"
    example: ClassVar[Any] = None

    def model(self) -> ToyDecoder:
        """Return a decoder that contains the example."""
        example = type(self).__dict__.get("example")
        if example is None:
            return ToyDecoder(2)
        return _WithExample(getattr(example, "__func__", example))

    def traced(self, model: ToyDecoder) -> Traced:
        """Trace a model as compile modes do, with the shapes of every node."""
        return trace_model(model, TOKENS, torch.device("cpu"))

    def compare(self, traced: Traced, model: ToyDecoder, sizes: Sequence[int]) -> None:
        """Ask that a changed graph gives what the model gives."""
        call = traced.bind(traced.graph.forward)
        for num_tokens in sizes:
            ask_equal(
                run_step(call, model, num_tokens, seed=num_tokens),
                run_step(model, model, num_tokens, seed=num_tokens),
                f"{num_tokens} tokens",
                self.plugin().NUMERICS,
            )

    @check(quick=True)
    def test_its_place_among_the_passes_exists(self) -> None:
        """`STAGE` is a stage; `BEFORE` and `AFTER` name installed passes and form no circle."""
        plugin: type[Pass] = self.plugin()
        ask(plugin.STAGE in STAGES, f"STAGE is {plugin.STAGE!r}; the stages are {STAGES}")
        registry = Registry()
        others = [registry.load("passes", name) for name in registry.names("passes")]
        installed = [*(one for one in others if plugin.NAME != one.NAME), plugin]
        names = [one.NAME for one in order_passes(installed, [f"+{plugin.NAME}"])]
        ask(plugin.NAME in names, f"+{plugin.NAME} turns on {names}")
        names = [one.NAME for one in order_passes(installed, [f"-{plugin.NAME}"])]
        ask(plugin.NAME not in names, f"-{plugin.NAME} leaves {names}")

    @check(quick=True)
    def test_a_graph_means_the_same_afterwards(self) -> None:
        """The changed graph gives the model's results for every number of tokens, is well formed
        and keeps its placeholders.
        """
        model = self.model()
        traced = self.traced(model)
        before = [node.name for node in traced.graph.graph.find_nodes(op="placeholder")]
        apply_passes(traced.graph, (self.make(),), self.plugin().STAGE)
        after = [node.name for node in traced.graph.graph.find_nodes(op="placeholder")]
        ask(before == after, f"the placeholders were {before} and are {after}")
        self.compare(traced, model, (1, 2, 7, TOKENS - 1, TOKENS))

    @check(needs=_has_example)
    def test_it_fires_on_its_example(self) -> None:
        """It fires on what its author says it fires on, once more than on the model without."""
        with_example, plain = (
            self.make().run(self.traced(model).graph) for model in (self.model(), ToyDecoder(2))
        )
        ask(
            with_example > plain,
            f"it fired {with_example} times with the example, {plain} times without",
        )

    @check(quick=True)
    def test_its_count_is_honest(self) -> None:
        """`run` returns how many times it fired: 0 if and only if the graph is as it was."""
        for model in (self.model(), ToyDecoder(1)):
            graph = self.traced(model).graph
            before = _calls(graph)
            count = self.make().run(graph)
            ask(isinstance(count, int) and count >= 0, f"run returned {count!r}")
            changed = _calls(graph) != before
            ask(changed == bool(count), f"it says {count}; the graph is changed: {changed}")

    @check()
    def test_the_same_graph_gives_the_same(self) -> None:
        """It is deterministic: the graph is part of a cache key."""
        model = self.model()
        graphs = [self.traced(model).graph for _ in range(2)]
        for graph in graphs:
            self.make().run(graph)
        ask(_calls(graphs[0]) == _calls(graphs[1]), "two runs on one graph gave two graphs")

    @check()
    def test_new_nodes_can_be_compiled(self) -> None:
        """What it puts into a graph has a fake implementation, so that every compile mode and
        pass that comes after it works: shapes propagate for every number of tokens.
        """
        from engine.graph_compiler import GraphCompiler
        from engine.strategies import CompileReport
        from engine.testing.conformance.toys import ExactBackend
        from engine.token_range import TokenRange

        model = self.model()
        job = compile_job(model, ExactBackend(), max_num_tokens=TOKENS, passes=(self.make(),))
        compiler = GraphCompiler(job, "kit", CompileReport())
        traced = self.traced(model)
        compiler.apply_passes(traced.graph)
        for tokens in (TokenRange(1, TOKENS), TokenRange(5, 5)):
            call = traced.bind(compiler.compile("the model", traced.graph, tokens))
            sizes = (5,) if tokens.exact else (1, 2, TOKENS)
            for num_tokens in sizes:
                ask_equal(
                    run_step(call, model, num_tokens),
                    run_step(model, model, num_tokens),
                    f"compiled for {tokens} tokens",
                    max(self.plugin().NUMERICS, Numerics.TOLERANCE, key=list(Numerics).index),
                )

    @check()
    def test_nothing_global_is_left_changed(self) -> None:
        """A run leaves settings, environment and random numbers as they were."""
        graph = self.traced(self.model()).graph
        with unchanged("a run"):
            self.make().run(graph)


def _calls(graph: fx.GraphModule) -> list[str]:
    """Return what a graph calls, on what, in order; names of nodes don't count."""
    names = {node: str(index) for index, node in enumerate(graph.graph.nodes)}
    return [
        f"{node.op} {node.target} {fx.map_arg((node.args, node.kwargs), lambda n: names[n])}"
        for node in graph.graph.nodes
    ]
