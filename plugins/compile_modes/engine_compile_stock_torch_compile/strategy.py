"""torch.compile, left alone and watched."""

from __future__ import annotations

import logging
from types import CodeType, FunctionType
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from engine.batch import BatchShape
from engine.events import CompiledUnit, EventBus
from engine.plugin import Numerics, StartupCost
from engine.strategies import CompiledModel, CompileJob, CompileReport, CompileStrategy, ModelCall

logger = logging.getLogger(__name__)


class StockOptions(BaseModel):
    """What torch.compile itself takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    fullgraph: bool = False
    """Fail on a graph break instead of compiling around it."""
    dynamic: bool | None = True
    """Symbolic sizes from the first trace on (true), never (false), or as PyTorch decides."""


class StockTorchCompile(CompileStrategy):
    """PyTorch's own pipeline: guards, recompiles and graph breaks are PyTorch's business.

    Compilations are counted through the backend, so that one that happens while serving is
    reported as late.
    """

    NAME = "stock_torch_compile"
    SUMMARY = "torch.compile on the whole model as PyTorch ships it, guards and recompiles included"
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.MINUTES
    OPTIONS = StockOptions

    _code: CodeType | None = None

    def compile(self, job: CompileJob) -> CompiledModel:
        """Compile by running the shapes that serving is known to need."""
        call, watch = self._wrap(job)
        sizes = sorted({1, 2, *job.sizes, job.max_num_tokens} & set(range(job.max_num_tokens + 1)))
        for size in reversed(sizes):
            with job.dummy_batch(BatchShape(size, 1, size, uniform_decode=False)) as inputs:
                call(inputs.input_ids, inputs.positions)
        watch.ready = True
        report = CompileReport(
            pieces=watch.count, cache_misses=watch.count, seconds={"compile": watch.seconds}
        )
        return CompiledModel(call, report, capturable=job.backend.CAPTURABLE)

    def _wrap(self, job: CompileJob) -> tuple[ModelCall, _Watch]:
        backend, options = job.backend.torch_backend()
        watch = _Watch(job.events)
        entry = _own_code(job.model)
        self._code = entry.__code__
        compiled = torch.compile(
            entry,
            backend=watch.around(backend, options),
            fullgraph=self.options.fullgraph,
            dynamic=self.options.dynamic,
        )
        return compiled, watch

    def close(self) -> None:
        """Forget what Dynamo keeps for this engine's entry function."""
        if self._code is not None:
            torch._dynamo.reset_code(self._code)
