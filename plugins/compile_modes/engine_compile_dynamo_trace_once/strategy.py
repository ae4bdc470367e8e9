"""The whole model as one graph, traced once."""

from __future__ import annotations

from engine.events import PhaseAdvanced
from engine.graph_compiler import GraphCompiler, dispatch, timed, warm_up
from engine.joined_weights import settle_joins
from engine.plugin import Numerics, StartupCost
from engine.strategies import (
    CompiledModel,
    CompileJob,
    CompileReport,
    CompileRequest,
    CompileStrategy,
)
from engine.token_range import plan_ranges
from engine.tracing import trace_model


class TraceOnce(CompileStrategy):
    """One Dynamo trace with a symbolic number of tokens; its guards are checked, then dropped.

    What is called at each step is the backend's callable itself, so nothing can be traced again.
    """

    NAME = "dynamo_trace_once"
    SUMMARY = "trace the whole model once, compile it once, never look at a guard again"
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.MINUTES
    SETTINGS = frozenset(
        {"compile_sizes", "compile_ranges", "passes", "cache_dir", "require_cache"}
    )

    def check(self, request: CompileRequest) -> None:
        """Refuse sizes that no step can have."""
        plan_ranges(request.max_num_tokens, request.ranges, request.exact_sizes)

    def compile(self, job: CompileJob) -> CompiledModel:
        """Trace, compile the graph for every range, and bind the parameters."""
        ranges = plan_ranges(job.max_num_tokens, job.ranges, job.exact_sizes)
        report = CompileReport(
            pieces=1, unique_pieces=1, ranges=tuple(tokens.high for tokens in ranges)
        )
        with timed(report, "trace", job.events):
            traced = trace_model(job.model, job.max_num_tokens, job.device)
        compiler = GraphCompiler(job, self.fingerprint(), report)
        compiler.apply_passes(traced.graph)
        traced = settle_joins(traced)
        steps = []
        for done, tokens in enumerate(ranges, 1):
            call = compiler.compile("model", traced.graph, tokens)
            steps.append((tokens, traced.bind(call)))
            job.events.emit(PhaseAdvanced("compile", done, len(ranges), f"{tokens} tokens"))
        with timed(report, "warm-up"):
            warm_up(job, steps)
        return CompiledModel(dispatch(steps), report, capturable=job.backend.CAPTURABLE)
