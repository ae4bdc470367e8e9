"""One Dynamo trace of the model, freed of Dynamo: a graph and how to call it.

Public: any compile strategy that wants the whole graph once needs the same care: a token
dimension that stays symbolic, guards that are checked at trace time and then gone, and no trace
left in Dynamo's process-wide caches, where a second engine would find it.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import config as dynamo_config
from torch._dynamo import mark_dynamic
from torch._dynamo.exc import TorchDynamoException
from torch._guards import TracingContext
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from engine.errors import CompileError
from engine.token_range import TokenRange, broken_assumptions

if TYPE_CHECKING:
    from engine.models import CausalLM
    from engine.strategies import ModelCall

_IDS, _POSITIONS = "L['input_ids']", "L['positions']"
_EXAMPLE_TOKENS = (97, 89, 83, 79, 73, 71, 67, 61, 59, 53, 47, 43, 41, 37, 31, 29, 23, 19, 17, 13)
"""Numbers of tokens to trace with: such as are seldom the size of anything else."""


@dataclass(frozen=True)
class Traced:
    """What a trace gave.

    Attributes:
        graph: the model as one FX graph over torch operators; parameters are placeholders.
        example_inputs: one value per placeholder: the parameters themselves, the example ids and
            positions, and symbolic ints for the number of tokens.
        ids, positions: where the step's inputs stand among the placeholders.
        sizes: where the number of tokens stands among the placeholders.
    """

    graph: fx.GraphModule
    example_inputs: tuple[Any, ...]
    ids: int | None
    positions: int | None
    sizes: tuple[int, ...]

    @property
    def result(self) -> fx.Node:
        """The node whose value the graph returns: hidden [T, H]."""
        return self.graph.graph.output_node().all_input_nodes[0]

    def bind(self, call: Callable[..., Any]) -> ModelCall:
        """Make a model call of a callable that takes the graph's placeholders.

        Parameters are bound once, so that a step costs no look-up of them.
        """
        template = list(self.example_inputs)
        for index in (self.ids, self.positions, *self.sizes):
            if index is not None:
                template[index] = None
        ids, positions, sizes = self.ids, self.positions, self.sizes

        def run(input_ids: torch.Tensor, step_positions: torch.Tensor) -> torch.Tensor:
            args = template.copy()
            if ids is not None:
                args[ids] = input_ids
            if positions is not None:
                args[positions] = step_positions
            for index in sizes:
                args[index] = input_ids.shape[0]
            result = call(*args)
            hidden: torch.Tensor = result[0] if isinstance(result, tuple | list) else result
            return hidden

        return run


def trace_model(model: CausalLM, max_num_tokens: int, device: torch.device) -> Traced:
    """Trace the model once, with the number of tokens symbolic from 1 to `max_num_tokens`.

    Nothing of the model is run, so no forward context is needed.

    Args:
        model: what to trace; left as it is.
        max_num_tokens: upper end of the token dimension.
        device: where the model's inputs are.

    Raises:
        CompileError: the model's Python depends on the batch; names the guard that a trace would
            have needed, or the code that can't be traced.
    """
    high = max(2, max_num_tokens)
    capture = _Capture(TokenRange(1, high))
    count = _example_tokens(model, high)
    ids, positions = (torch.zeros(count, dtype=torch.int64, device=device) for _ in range(2))
    for tensor in (ids, positions):
        mark_dynamic(tensor, 0)

    def call(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return model(input_ids, positions)  # type: ignore[no-any-return]  # nn.Module's __call__

    entry = with_own_code(call, "model_trace")
    compiled = torch.compile(entry, fullgraph=True, backend=capture)
    try:
        # Without 0/1 specialisation, a branch on "one token" is a guard, not a silent constant.
        with _no_collection(), _alone(), shape_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]  # added by torch's config machinery
            compiled(ids, positions)
    except (TorchDynamoException, ConstraintViolationError) as error:
        if capture.refusal or not capture.kept:
            raise _refusal(model, capture.refusal or dynamo_reason(error)) from error
    finally:
        forget(entry)
    return _describe(*capture.kept.pop())


def _example_tokens(model: CausalLM, high: int) -> int:
    """Return a number of tokens that is the size of nothing else in the model.

    An operator that finds two sizes equal may take them for one: eight tokens for eight heads.
    """
    taken = {size for parameter in model.parameters() for size in parameter.shape}
    for spec in model.attention_specs:
        taken |= {spec.num_heads, spec.num_kv_heads, spec.num_heads + spec.num_kv_heads}
        taken.add(spec.head_size)
    return next((n for n in _EXAMPLE_TOKENS if n <= high and n not in taken), high)


class _CapturedError(Exception):
    """Ends Dynamo's work: the graph is there, and nobody wants guards or bytecode."""


@contextmanager
def _alone() -> Iterator[None]:
    """Let Dynamo not look at what it traced before.

    It takes a constant that had another value in an earlier trace of the same line for a variable:
    the epsilon of another engine's norms, the width of another model.
    """
    with dynamo_config.patch(automatic_dynamic_shapes=False, specialize_float=True):
        yield


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold garbage collection off: a trace makes millions of objects and hardly a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Capture:
    """The backend of the one trace: keeps the graph and checks what the trace took for granted."""

    def __init__(self, tokens: TokenRange) -> None:
        self.tokens = tokens
        self.refusal = ""
        # Dynamo keeps its backends, and must not keep the model by one: whoever reads this pops.
        self.kept: list[tuple[fx.GraphModule, tuple[Any, ...]]] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> NoReturn:
        mode = TracingContext.get().fake_mode
        env = mode.shape_env if mode is not None else None
        for guard in env.guards if env is not None else ():
            # Fake tensors ask on their own whether a size is 1, to lay it out; what they then
            # take for other sizes fits 1 too. A branch of the model's Python is another matter.
            low = 1 if _is_branch(guard) else 2
            if broken := broken_assumptions([guard.expr], replace(self.tokens, low=low)):
                ((expression, number),) = broken
                self.refusal = (
                    "its Python depends on the number of tokens: it would need the guard "
                    f"`{expression}`, which a batch of {number} breaks, at `{guard.sloc}`"
                )
                raise ValueError(self.refusal)
        self.kept.append((graph, tuple(inputs)))
        raise _CapturedError


def _is_branch(guard: Any) -> bool:
    """Say whether Python, and not a tensor operator, asked for a guard."""
    location = getattr(guard.sloc, "framework_loc", None)
    return "_dynamo/variables" in str(getattr(location, "filename", "_dynamo/variables"))


def with_own_code(function: Callable[..., Any], name: str) -> types.FunctionType:
    """Return a copy of a Python function that has a code object of its own.

    Dynamo caches by code object: two models of one class that shared it would see each other's
    compilations, and with guards gone run each other's graph. `forget` what isn't needed any more.
    """
    code = function.__code__.replace(co_name=name)
    return types.FunctionType(code, function.__globals__, name, None, function.__closure__)


def forget(entry: types.FunctionType) -> None:
    """Drop what Dynamo keeps for a function of `with_own_code`."""
    reset_code(entry.__code__)


def _describe(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Traced:
    ids = positions = None
    sizes = []
    placeholders = graph.graph.find_nodes(op="placeholder")
    for index, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        source = _source(node)
        if isinstance(value, torch.SymInt | int):
            sizes.append(index)
        elif source == _IDS:
            ids = index
        elif source == _POSITIONS:
            positions = index
    return Traced(graph, tuple(example_inputs), ids, positions, tuple(sizes))


def _source(node: fx.Node) -> str:
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def dynamo_reason(error: Exception) -> str:
    """Shorten Dynamo's pages of advice to what is wrong and where in the model."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    frames = getattr(error, "real_stack", None) or ()
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return ": ".join(line.removeprefix("Explanation: ") for line in lines[:2])[:400] + where


def _refusal(model: CausalLM, reason: str) -> CompileError:
    return CompileError(
        f"{type(model).__name__} can't be traced once for all batches: {reason}",
        "choose a compile mode that keeps guards, or one that compiles nothing",
    )
