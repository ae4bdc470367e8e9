"""torch.compile, left alone and watched."""

from __future__ import annotations

from types import FunctionType

import torch
from pydantic import BaseModel, ConfigDict
from torch._dynamo.exc import TorchDynamoException

from engine.batch import BatchShape
from engine.errors import CompileError
from engine.plugin import Numerics, StartupCost
from engine.strategies import (
    CompiledModel,
    CompileJob,
    CompileReport,
    CompileRequest,
    CompileStrategy,
)
from engine.token_range import plan_ranges
from engine.tracing import dynamo_reason, forget, with_own_code
from engine_compile_stock_torch_compile.watch import Watch


class StockOptions(BaseModel):
    """What torch.compile itself takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    fullgraph: bool = False
    """Fail on a graph break instead of compiling around it."""
    dynamic: bool | None = True
    """Symbolic sizes from the first trace on (true), never (false), or as PyTorch decides."""


class StockTorchCompile(CompileStrategy):
    """PyTorch's own pipeline: guards, recompiles and graph breaks are PyTorch's business.

    Every compilation passes through a watched backend, so that one that happens while serving is
    reported as late, with the guard that failed.
    """

    NAME = "stock_torch_compile"
    SUMMARY = "torch.compile on the whole model as PyTorch ships it, guards and recompiles included"
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.MINUTES
    OPTIONS = StockOptions
    SETTINGS = frozenset({"compile_sizes"})

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self._entry: FunctionType | None = None
        self._watch: Watch | None = None

    def check(self, request: CompileRequest) -> None:
        """Refuse sizes that no step can have."""
        plan_ranges(request.max_num_tokens, sizes=request.exact_sizes)

    def compile(self, job: CompileJob) -> CompiledModel:
        """Compile by running the shapes that serving is known to need."""
        self.check(job)
        model = job.model
        watch = self._watch = Watch(job)

        def call_model(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                watch.left_uncompiled(input_ids.shape[0])
            return model(input_ids, positions)  # type: ignore[no-any-return]  # nn.Module's __call__

        self._entry = with_own_code(call_model, "model_step")
        compiled = torch.compile(
            self._entry,
            backend=watch.backend(),
            fullgraph=self.options.fullgraph,
            dynamic=self.options.dynamic,
        )
        call = watch.step(compiled)
        wanted = {1, 2, *job.sizes, *job.exact_sizes, job.max_num_tokens}
        # A dynamic trace is best made at a large size, where nothing is 1 by chance.
        for size in sorted(wanted & set(range(1, job.max_num_tokens + 1)), reverse=True):
            shape = BatchShape(size, 1, size, uniform_decode=False)
            # The mode that serving runs in: it is one of PyTorch's guards.
            with torch.inference_mode(), job.dummy_batch(shape) as inputs:
                try:
                    call(inputs.input_ids, inputs.positions)
                except TorchDynamoException as error:
                    raise CompileError(
                        f"torch.compile fails on {type(model).__name__}: {dynamo_reason(error)}",
                        "choose another compile mode or backend"
                        + (", or leave mode_options.fullgraph out" * self.options.fullgraph),
                    ) from error
        watch.ready = True
        report = CompileReport(
            pieces=watch.count,
            unique_pieces=watch.count,
            cache_misses=watch.count,
            seconds={"compile": watch.seconds},
        )
        return CompiledModel(call, report, capturable=job.backend.CAPTURABLE)

    def close(self) -> None:
        """Drop what Dynamo keeps for this engine's entry function."""
        if self._entry is not None and self._watch is not None:
            forget(self._entry)
            self._watch.close()
        self._entry = self._watch = None
