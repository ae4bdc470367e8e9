"""torch.compile on one block of a stack of equal ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch._dynamo import maybe_mark_dynamic
from torch.fx.experimental import _config as shape_config

from engine.batch import BatchShape
from engine.errors import ModelError
from engine.events import CompiledUnit
from engine.plugin import Numerics, StartupCost
from engine.strategies import CompiledModel, CompileJob, CompileReport, CompileStrategy
from engine.tracing import forget, with_own_code


class RegionalCompile(CompileStrategy):
    """Compiles the block that a model repeats, once, with its weights and its number as arguments.

    What lies around the blocks (embedding, last norm) stays the model's own Python. Start-up
    doesn't grow with the depth of the model, and no graph is cut.
    """

    NAME = "regional_compile"
    SUMMARY = "torch.compile one transformer block and reuse it for all; the rest runs as it is"
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.SECONDS
    SETTINGS = frozenset({"compile_sizes"})

    def compile(self, job: CompileJob) -> CompiledModel:
        """Put the compiled block in place of every block, and run it once at some sizes.

        Raises:
            ModelError: the model has no stack of equal blocks.
        """
        self._blocks = repeated_blocks(job.model)

        def run_block(block: nn.Module, *inputs: Any) -> Any:
            return type(block).forward(block, *inputs)

        self._entry = with_own_code(run_block, "regional_block")
        counter = _Counter(job, type(self._blocks[0]).__name__)
        compiled = torch.compile(self._entry, backend=counter.compile, fullgraph=True)
        for block in self._blocks:
            block.forward = partial(_with_any_number_of_tokens, compiled, block)
        wanted = {2, 1, *job.sizes, *job.exact_sizes, job.max_num_tokens}
        with one_block_for_all(self._blocks):
            # A dynamic trace is best made at a large size, where nothing is 1 by chance.
            for size in sorted(wanted & set(range(1, job.max_num_tokens + 1)), reverse=True):
                shape = BatchShape(size, 1, size, uniform_decode=False)
                # The mode that serving runs in: it is one of PyTorch's guards.
                with torch.inference_mode(), job.dummy_batch(shape) as inputs:
                    job.model(inputs.input_ids, inputs.positions)
        for block in self._blocks:
            block.forward = partial(compiled, block)
        counter.ready = True
        report = CompileReport(
            pieces=len(self._blocks),
            unique_pieces=counter.count,
            cache_misses=counter.count,
            seconds={"compile": counter.seconds},
        )
        return CompiledModel(job.model, report, capturable=job.backend.CAPTURABLE)

    def close(self) -> None:
        """Give the blocks their own forward back, and drop what Dynamo keeps."""
        for block in self.__dict__.pop("_blocks", ()):
            del block.forward
        if (entry := self.__dict__.pop("_entry", None)) is not None:
            forget(entry)


class _Counter:
    """Stands before the backend: counts what is compiled and tells of each."""

    def __init__(self, job: CompileJob, name: str) -> None:
        self._inner, self._events, self._name = job.backend.torch_backend(), job.events, name
        self.count, self.seconds, self.ready = 0, 0.0, False

    def compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph."""
        start = perf_counter()
        made: Callable[..., Any] = self._inner(graph, inputs)
        seconds = perf_counter() - start
        self.count, self.seconds = self.count + 1, self.seconds + seconds
        self._events.emit(
            CompiledUnit(
                f"block {self._name}",
                seconds,
                late=self.ready,
                reason="a block or batch of another kind" if self.ready else "",
            )
        )
        return made


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a model repeats: its longest list of modules of one class.

    Raises:
        ModelError: it repeats none.
    """
    stacks = [
        list(module)
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len({type(block) for block in module}) == 1
    ]
    if not stacks:
        raise ModelError(
            f"{type(model).__name__} repeats no block (no ModuleList of one class); choose "
            "another compile mode"
        )
    return max(stacks, key=len)


def _with_any_number_of_tokens(compiled: Callable[..., Any], block: nn.Module, *inputs: Any) -> Any:
    """Call a compiled block, of whose inputs the first dimension is the number of tokens."""
    for value in inputs:
        if isinstance(value, torch.Tensor):
            maybe_mark_dynamic(value, 0)
    return compiled(block, *inputs)


def numbers_that_differ(blocks: Sequence[nn.Module]) -> list[str]:
    """Return the whole numbers of a block (which layer it is) that other blocks have otherwise.

    Each as a pattern for Dynamo's name of it.
    """
    found = []
    for path, module in blocks[0].named_modules():
        for name, value in vars(module).items():
            if type(value) is not int:
                continue
            others = (vars(block.get_submodule(path)).get(name) for block in blocks)
            if any(other != value for other in others):
                found.append(rf".*\['{path.rpartition('.')[2]}'\]\.{name}$" if path else name)
    return [source if source.startswith(".*") else rf"L\['block'\]\.{source}$" for source in found]


@contextmanager
def one_block_for_all(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Make what tells the blocks apart an argument; no number is special, not even 0 and 1."""
    sources = ",".join(numbers_that_differ(blocks))
    with (
        torch.compiler.config.patch(dynamic_sources=sources),  # type: ignore[attr-defined]  # added by torch's config machinery
        shape_config.patch(backed_size_oblivious=True),  # type: ignore[attr-defined]  # likewise
    ):
        yield
