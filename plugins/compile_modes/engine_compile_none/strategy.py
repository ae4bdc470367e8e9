"""The strategy that compiles nothing."""

from __future__ import annotations

from engine.strategies import CompiledModel, CompileJob, CompileReport, CompileStrategy


class NoCompile(CompileStrategy):
    """Runs the module eagerly: the reference that every other mode is compared with."""

    NAME = "none"
    SUMMARY = "run the model's own Python; nothing is compiled, starts at once"
    USES_BACKEND = False

    def compile(self, job: CompileJob) -> CompiledModel:
        """Return the module itself."""
        return CompiledModel(call=job.model, report=CompileReport(), watchable=True)
