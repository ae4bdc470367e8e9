"""The base classes of the three axes, and what the core hands to them.

Shapes: T tokens of a step (flat, no padding to a rectangle), H hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from engine.artifacts import ArtifactStore
from engine.batch import BatchShape
from engine.dump import GraphDump
from engine.events import EventBus
from engine.facts import Facts, GraphSupport
from engine.plugin import Plugin, Refusal

if TYPE_CHECKING:
    import torch
    from torch import fx

    from engine.graph_device import GraphDevice
    from engine.models import CausalLM

ModelCall = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""`(input_ids [T] int64, positions [T] int64) -> hidden [T, H]`, run in a forward context."""


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of one step: views of static buffers that never move.

    Attributes:
        input_ids: [T] int64.
        positions: [T] int64.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor


DummyBatch = Callable[[BatchShape], AbstractContextManager[ModelInputs]]
"""`with dummy_batch(shape) as inputs:` sets a forward context for a batch of that shape whose
rows write to no KV block. For warm-up, tracing, tuning and capture."""


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What is known of a compilation before the weights are read."""

    max_num_tokens: int
    """Upper end of the token dimension; the lower end is 1."""
    sizes: tuple[int, ...]
    """Token counts that will certainly be asked for (capture sizes, `compile_sizes`)."""
    ranges: tuple[int, ...]
    """Upper ends of the token ranges to specialise for; the last one is `max_num_tokens`."""
    break_ops: frozenset[str]
    """Operators (`namespace::name`) at which a graph must be split."""
    exact_sizes: tuple[int, ...] = ()
    """Token counts to specialise for, besides the ranges (`compile_sizes`)."""


@dataclass(frozen=True, kw_only=True)
class CompileJob(CompileRequest):
    """What the core gives a compile strategy."""

    model: CausalLM
    backend: Backend
    device: torch.device
    passes: tuple[Pass, ...]
    """The passes that are on, in order."""
    store: ArtifactStore
    events: EventBus
    dummy_batch: DummyBatch
    key_factors: Mapping[str, str] = field(default_factory=dict)
    """What every artifact's key must hold besides graph, plugins and environment: settings, and
    the code of the engine, of the model and of the plugins in force."""
    model_name: str = ""
    """What the model is called, for people who look at the store; no part of a key."""
    require_cache: bool = False
    """Compile nothing: a unit that isn't in the store ends the start-up. A strategy that keeps to
    it names the setting in `SETTINGS`; others are refused when it is asked for."""
    dump: GraphDump = field(default_factory=GraphDump)
    """Takes what people want to read (`--debug-dump`); what goes through `GraphCompiler` is
    written by that already."""


@dataclass
class CompileReport:
    """What a compile strategy made.

    Attributes:
        pieces: graphs that a step runs through the backend.
        unique_pieces: how many of them differ.
        ranges: upper ends of the token ranges that were compiled separately.
        cache_hits, cache_misses: callables loaded from the artifact store, and compiled.
        unkept: units that the store can't keep, with the reason; compiled at each start.
        passes: how many times each pass fired.
        seconds: by phase (`trace`, `split`, `compile`, `load`, …).
    """

    pieces: int = 0
    unique_pieces: int = 0
    ranges: tuple[int, ...] = ()
    cache_hits: int = 0
    cache_misses: int = 0
    unkept: dict[str, str] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CompiledModel:
    """A callable with the model's signature, and what is known of it."""

    call: ModelCall
    report: CompileReport
    capturable: bool = True
    watchable: bool = False
    """Whether a dispatch mode may be in force while it runs, so that operators can be watched.
    Not where Dynamo's guards are checked: they fail then, and PyTorch falls back to Python."""


class CompileStrategy(Plugin):
    """Decides how the model's Python becomes a callable.

    Guarantees to keep: the module's own results within the declared numerics class; nothing
    compiled after `compile` returns for token counts in `1…max_num_tokens` (a late compile is
    reported as `CompiledUnit(late=True)`); nothing global left changed (dynamo limits, inductor
    configuration, RNG state), also when it fails.
    """

    USES_BACKEND: ClassVar[bool] = True
    """False when no FX graph is ever handed to a backend; resolution then says so."""
    CAPTURABLE: ClassVar[bool] = True
    """Whether a graph strategy may record what `compile` returns."""

    def check(self, request: CompileRequest) -> None:
        """Refuse settings that can't be honoured; called before the weights are read.

        Raises:
            ConfigError: names the setting, the value and the remedy.
        """

    @abstractmethod
    def compile(self, job: CompileJob) -> CompiledModel:
        """Make the callable; everything that serving will need is compiled before it returns.

        Raises:
            CompileError: not of this model, or not here; another mode may be taken.
        """

    def close(self) -> None:
        """Free what the strategy holds; called once, when the engine shuts down."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How one step will be executed.

    Attributes:
        kind: the strategy's own label (`full`, `piecewise`, …), for counters and logs; `eager`
            when the strategy doesn't record such batches.
        padded: the shape that the inputs are padded to; the live shape when nothing is recorded.
        reason: why the step isn't replayed from a graph; empty when it is.
    """

    kind: str
    padded: BatchShape
    reason: str = ""


@dataclass(frozen=True)
class GraphJob:
    """What the core gives a graph strategy."""

    compiled: CompiledModel
    device: GraphDevice | None
    """What records graphs; None when the strategy declared that it needs none."""
    sizes: tuple[int, ...]
    """Token counts to record, ascending; already clipped to the engine's limits."""
    max_num_seqs: int
    graph_support: GraphSupport
    memory_budget: int | None
    """Bytes that graphs may take; None when unlimited."""
    lazy: bool
    abort_on_failure: bool
    debug: bool
    events: EventBus
    dummy_batch: DummyBatch
    make: Callable[[str], GraphStrategy]
    """Builds another installed graph strategy by name, for strategies that compose."""
    unknown_ops: tuple[str, ...] = ()
    """Operators that the model calls outside of break ops and that nobody vouches for
    (`engine.ops.is_recordable`). They must not be recorded blindly."""
    dump: GraphDump = field(default_factory=GraphDump)
    """Takes what people want to read (`--debug-dump`); the plan is written by the core."""


class GraphStrategy(Plugin):
    """Decides which batches are recorded, and runs each step accordingly.

    Guarantees to keep: a batch that matches no recorded shape runs unpadded and uncaptured;
    padded rows change no live row and no live KV block; inputs are read from the static buffers
    at replay; a failed capture drops that shape and leaves stream and pool usable.
    """

    NEEDS_GRAPHS: ClassVar[bool] = True
    """False only for a strategy that records nothing."""
    MIN_SUPPORT: ClassVar[GraphSupport] = GraphSupport.NEVER
    """The least that the attention implementation must declare for this strategy to be useful."""

    KINDS: ClassVar[tuple[str, ...]] = ()
    """The labels of recorded steps that `dispatch` returns, besides `eager`."""

    @classmethod
    def refuse(cls, facts: Facts) -> Refusal | None:
        """Refuse a device that can't record, a callable that may not be, attention that can't."""
        if refusal := super().refuse(facts):
            return refusal
        if cls.NEEDS_GRAPHS and facts.device.graph_device is None:
            return Refusal(
                f"device {facts.device.type} can't record graphs",
                "choose a graph mode that records nothing, or a device with graphs "
                "(--graph-device simulated tests graph modes without one)",
            )
        if cls.NEEDS_GRAPHS and not facts.capturable:
            return Refusal(
                f"compile mode {facts.chosen.get('compile_modes')} makes callables that "
                "can't be recorded",
                "choose another compile mode, or a graph mode that records nothing",
            )
        if facts.graph_support < cls.MIN_SUPPORT:
            return Refusal(
                f"attention {facts.chosen.get('attention')} can't be inside a recorded graph "
                f"({facts.graph_support.name.lower()})",
                "choose another attention implementation or graph mode",
            )
        return None

    @abstractmethod
    def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
        """Return the shapes that `prepare` will record, in the order of recording.

        Also called where nothing is compiled or loaded (`engine explain`): the job then has its
        sizes, limits, `graph_support` and `make`, no device, and a callable that can't be called.
        """

    @abstractmethod
    def prepare(self, job: GraphJob) -> None:
        """Record what was planned (or nothing yet, when `job.lazy`)."""

    @abstractmethod
    def dispatch(self, shape: BatchShape) -> Decision:
        """Decide how a batch of this shape runs. Pure, and a table look-up: under 5 µs."""

    @abstractmethod
    def run(self, decision: Decision, inputs: ModelInputs) -> torch.Tensor:
        """Run one step; the forward context is set and `inputs` have the padded shape.

        Returns:
            hidden [T, H], T being the padded number of tokens; valid until the next `run`.
        """

    def close(self) -> None:
        """Free graphs and their memory; called once, also where `prepare` was never reached."""


class Backend(Plugin):
    """Turns an FX graph, whole or a piece, into a callable."""

    CAPTURABLE: ClassVar[bool] = True
    """Whether its callables may be inside a recorded graph."""
    CACHEABLE: ClassVar[bool] = False
    """Whether `save` and `load` work."""

    def prepare(self) -> None:
        """Import what compiling and loading need; called before the weights are read.

        Only where the compile mode in force uses a backend. A broken installation is then told at
        once, and its seconds are those of the phase `plugins`.

        Raises:
            EngineError: the backend can't work here; says what to do.
        """

    @abstractmethod
    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Compile one graph.

        Args:
            graph: what to compile; must not be kept in a changed form by the caller.
            example_inputs: tensors (fake or real) and symbolic or plain ints, in the order of
                the graph's placeholders.
            dynamic: keep symbolic sizes symbolic; otherwise specialise for the example's sizes.
        """

    def torch_backend(self) -> Callable[..., Any]:
        """Return what `torch.compile` takes as `backend`: `(graph, inputs) -> callable`.

        A backend that PyTorch drives in a way of its own returns that, so that it works there as
        it ships; others are handed each graph that Dynamo finds.
        """
        return lambda graph, inputs: self.compile(graph, inputs, dynamic=True)

    def generated_code(self, compiled: Callable[..., Any]) -> Mapping[str, str]:
        """Return the code that was generated for a callable of ours, for people to read.

        By file name, with its ending; empty where there is none, or none any more. Called only
        where a start is dumped (`--debug-dump`), for what `compile`, `load` or the function of
        `torch_backend` returned.
        """
        del compiled
        return {}

    def save(self, compiled: Callable[..., Any]) -> bytes | None:
        """Serialise what `compile` returned, or None when it can't be."""
        del compiled
        return None

    def load(
        self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Restore what `save` wrote, without compiling.

        Raises:
            ValueError: the artifact isn't usable here; the caller compiles afresh.
        """
        raise ValueError(f"backend {self.NAME} stores no artifacts")


class Pass(Plugin):
    """One FX graph transformation, ordered among others by `engine.passes`."""

    STAGE: ClassVar[str] = "graph"
    """When it runs; one of `engine.passes.STAGES`."""
    BEFORE: ClassVar[tuple[str, ...]] = ()
    """Names of passes that must run later."""
    AFTER: ClassVar[tuple[str, ...]] = ()
    """Names of passes that must have run."""
    ON_BY_DEFAULT: ClassVar[bool | frozenset[str]] = False
    """Whether it runs when no switch names it; or the types of device on which it does. On a GPU
    only where steps are replayed from graphs, as launching an operator costs the host more than
    compiled code does."""

    @abstractmethod
    def run(self, graph: fx.GraphModule) -> int:
        """Change the graph in place and return how many times the pass fired.

        Nodes have their (fake) value in `meta["example_value"]`. Placeholders must stay.
        """


class CaptureSizePolicy(Plugin):
    """Proposes the token counts to record when the user names none."""

    @abstractmethod
    def sizes(self, limits: Mapping[str, int]) -> Sequence[int]:
        """Return token counts; `limits` has `max_num_seqs`, `max_num_tokens` and `max_size`."""
