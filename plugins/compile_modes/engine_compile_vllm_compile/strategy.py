"""The model cut at its break ops, its equal pieces compiled once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from engine.events import PhaseAdvanced
from engine.graph_compiler import GraphCompiler, dispatch, timed, warm_up
from engine.graph_hash import graph_hash
from engine.joined_weights import settle_joins
from engine.plugin import Numerics, StartupCost
from engine.strategies import (
    CompiledModel,
    CompileJob,
    CompileReport,
    CompileRequest,
    CompileStrategy,
)
from engine.token_range import TokenRange, plan_ranges
from engine.tracing import Traced, trace_model
from engine_compile_vllm_compile.break_ops import break_op_name, check_break_ops, writes
from engine_compile_vllm_compile.split import Piece, split_graph
from engine_compile_vllm_compile.stitch import Stitcher


class PiecewiseCompile(CompileStrategy):
    """One trace, cut before and after every break op; the layers between are all alike.

    A piece that occurs thirty times is compiled once for each token range. Nothing is compiled
    after `compile` returns: a step looks up its number of tokens and calls what is there.
    """

    NAME = "vllm_compile"
    SUMMARY = "trace once, cut at the break ops, compile equal pieces once; the default"
    ALIASES = ("piecewise_compile",)
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.SECONDS
    SETTINGS = frozenset(
        {
            "splitting_ops",
            "compile_sizes",
            "compile_ranges",
            "passes",
            "cache_dir",
            "require_cache",
        }
    )

    def check(self, request: CompileRequest) -> None:
        """Refuse operators that no graph can be split at, and sizes that no step can have."""
        check_break_ops(request.break_ops)
        plan_ranges(request.max_num_tokens, request.ranges, request.exact_sizes)

    def compile(self, job: CompileJob) -> CompiledModel:
        """Trace, split, compile every distinct piece for every range, and stitch."""
        self.check(job)
        ranges = plan_ranges(job.max_num_tokens, job.ranges, job.exact_sizes)
        report = CompileReport(ranges=tuple(tokens.high for tokens in ranges))
        with timed(report, "trace", job.events):
            traced = trace_model(job.model, job.max_num_tokens, job.device)
        graphs = GraphCompiler(job, self.fingerprint(), report)
        graphs.apply_passes(traced.graph)
        traced = settle_joins(traced)
        with timed(report, "split"):
            pieces = split_graph(traced.graph, lambda node: break_op_name(node) in job.break_ops)
            stitcher = _stitcher(traced, pieces)
        job.dump.text("stitched.py", stitcher.source, "runs the pieces in order, break ops between")
        compiler = _PieceCompiler(job, pieces, len(ranges), graphs)
        report.pieces, report.unique_pieces = compiler.pieces, compiler.unique_pieces
        steps = [(tokens, stitcher.stitch(compiler.compile(tokens))) for tokens in ranges]
        with timed(report, "warm-up"):
            warm_up(job, steps)
        return CompiledModel(
            dispatch(steps),
            report,
            capturable=job.backend.CAPTURABLE,
            # Compilers wrap an operator that writes to its arguments in one that no mode may see.
            watchable=not any(writes(piece.graph) for piece in pieces if not piece.is_break),
        )


class _PieceCompiler:
    """Compiles the distinct pieces of a model for one range after the other, and reports each."""

    def __init__(
        self, job: CompileJob, pieces: list[Piece], ranges: int, compiler: GraphCompiler
    ) -> None:
        self._pieces, self._compiler, self._events = pieces, compiler, job.events
        compiled = {index: piece for index, piece in enumerate(pieces) if not piece.is_break}
        # A piece whose meaning can't be told is like no other.
        self._kinds = {i: graph_hash(piece.graph) or str(i) for i, piece in compiled.items()}
        self.pieces, self.unique_pieces = len(compiled), len(set(self._kinds.values()))
        self._total, self._done = self.unique_pieces * ranges, 0

    def compile(self, tokens: TokenRange) -> list[Callable[..., Any]]:
        """Return one callable per piece; break ops stay what they are."""
        made: dict[str, Callable[..., Any]] = {}
        uses = Counter(self._kinds.values())
        for index, kind in self._kinds.items():
            if kind not in made:
                name, graph = f"piece {index}", self._pieces[index].graph
                made[kind] = self._compiler.compile(name, graph, tokens, uses=uses[kind])
                self._done += 1
                detail = f"{name}, {tokens} tokens"
                self._events.emit(PhaseAdvanced("compile", self._done, self._total, detail))
        return [
            piece.graph.forward if piece.is_break else made[self._kinds[index]]
            for index, piece in enumerate(self._pieces)
        ]


def _stitcher(traced: Traced, pieces: list[Piece]) -> Stitcher:
    placeholders = traced.graph.graph.find_nodes(op="placeholder")
    inputs = {placeholders[index]: "input_ids.shape[0]" for index in traced.sizes}
    if traced.ids is not None:
        inputs[placeholders[traced.ids]] = "input_ids"
    if traced.positions is not None:
        inputs[placeholders[traced.positions]] = "positions"
    constants = {
        node: value
        for node, value in zip(placeholders, traced.example_inputs, strict=True)
        if node not in inputs
    }
    return Stitcher(pieces, inputs, constants, traced.result)
