"""Sees every compilation that torch.compile makes for one engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.utils import get_compilation_metrics

from engine.events import CompiledUnit, Notice
from engine.graph_compiler import dump_code

if TYPE_CHECKING:
    from torch import fx

    from engine.strategies import CompileJob, ModelCall

logger = logging.getLogger(__name__)


class Watch:
    """Counts and times compilations, and reports them; those after `ready` as late.

    Args:
        job: gives the backend, where compilations are reported, and where graphs are shown.
    """

    def __init__(self, job: CompileJob) -> None:
        self.ready = False
        self.count = 0
        self.seconds = 0.0
        self._events = job.events
        self._job: CompileJob | None = job
        self._compile_graph: Callable[..., Any] | None = job.backend.torch_backend()
        self._fresh: list[float] = []
        self._gave_up = False

    def backend(self) -> Callable[..., Any]:
        """Return a backend that does what the job's does and is watched."""

        def watched(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            if self._job is None or self._compile_graph is None:
                raise RuntimeError("the engine was closed")
            dump = self._job.dump.inside(f"graph {self.count + len(self._fresh) + 1}")
            dump.graph("graph", graph, "as Dynamo found it")
            start = perf_counter()
            compiled: Callable[..., Any] = self._compile_graph(graph, inputs)
            self._fresh.append(perf_counter() - start)
            dump_code(dump, self._job.backend, compiled)
            return compiled

        return watched

    def step(self, compiled: Callable[..., Any]) -> ModelCall:
        """Return the compiled model, reporting what each call had to compile."""

        def call(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            # `data` shares the memory and is no view: PyTorch guards on what a view is a view of,
            # and the largest step is all of its static buffer, which the others are not.
            hidden: torch.Tensor = compiled(input_ids.data, positions.data)
            if self._fresh:
                self._report(input_ids.shape[0])
            return hidden

        return call

    def close(self) -> None:
        """Let go of the backend: Dynamo keeps what it was given for the life of the process."""
        self._job = self._compile_graph = None

    def left_uncompiled(self, num_tokens: int) -> None:
        """Report, once, that PyTorch gave up compiling and runs the model's own Python."""
        if not self._gave_up:
            self._gave_up = True
            message = (
                f"torch.compile left a batch of {num_tokens} tokens uncompiled, as it will others: "
                "too many recompilations, or code that it skips; try mode_options.dynamic=true"
            )
            logger.warning(message)
            self._events.emit(Notice(message))

    def _report(self, num_tokens: int) -> None:
        # PyTorch writes its record down when the compilation is over, that is, by now.
        records = get_compilation_metrics()
        reason = " ".join((records[-1].recompile_reason or "").split()) if records else ""
        for seconds in self._fresh:
            self.count += 1
            self.seconds += seconds
            unit = f"graph {self.count} [{num_tokens}]"
            self._events.emit(CompiledUnit(unit, seconds, late=self.ready, reason=reason))
            if self.ready:
                logger.warning(
                    "compiled while serving, %.1f s for %d tokens: %s", seconds, num_tokens, reason
                )
        self._fresh.clear()
