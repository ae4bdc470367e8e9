"""The whole model as one graph, traced once."""

from __future__ import annotations

from time import perf_counter

from engine.batch import BatchShape
from engine.events import CompiledUnit
from engine.plugin import Numerics, StartupCost
from engine.strategies import CompiledModel, CompileJob, CompileReport, CompileStrategy
from engine.tracing import trace_model


class TraceOnce(CompileStrategy):
    """One Dynamo trace with a symbolic number of tokens; its guards are checked, then dropped.

    What is called at each step is the backend's callable itself, so nothing can be traced again.
    """

    NAME = "dynamo_trace_once"
    SUMMARY = "trace the whole model once, compile it once, never look at a guard again"
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.MINUTES

    def compile(self, job: CompileJob) -> CompiledModel:
        """Trace, compile for all token counts, and bind the parameters."""
        start = perf_counter()
        count = min(8, job.max_num_tokens)
        with job.dummy_batch(BatchShape(count, 1, count, uniform_decode=False)) as inputs:
            traced = trace_model(job.model, inputs, job.max_num_tokens)
            middle = perf_counter()
            compiled = job.backend.compile(traced.graph, traced.example_inputs, dynamic=True)
        end = perf_counter()
        job.events.emit(CompiledUnit("model", end - middle))
        report = CompileReport(
            pieces=1,
            ranges=(job.max_num_tokens,),
            cache_misses=1,
            seconds={"trace": middle - start, "compile": end - middle},
        )
        return CompiledModel(traced.bind(compiled), report, capturable=job.backend.CAPTURABLE)
