"""A compile mode that takes the whole process with it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from engine.hookspecs import hookimpl

if TYPE_CHECKING:
    from engine.strategies import CompiledModel, CompileJob

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_compile_mode() -> Any:
    from engine.strategies import CompileStrategy

    class Crashing(CompileStrategy):
        """Ends as code with a wrong pointer does."""

        NAME = "crashing"
        SUMMARY = "a compile mode that crashes"
        USES_BACKEND = False

        def compile(self, job: CompileJob) -> CompiledModel:
            os.kill(os.getpid(), signal.SIGSEGV)
            raise AssertionError("unreachable")

    return Crashing
