"""What is asked of a backend, on a small graph with a symbolic number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import fx
from torch.nn import functional as F

from engine.batch import BatchShape
from engine.forward_context import ForwardContext, forward_context
from engine.ops import break_op
from engine.plugin import Numerics
from engine.runtime.simulated_graphs import SimulatedGraphDevice
from engine.strategies import Backend
from engine.testing.compiling import OneRequestAttention
from engine.testing.conformance.comparing import ask_all_equal, ask_equal, first_difference
from engine.testing.conformance.declared import PluginConformance
from engine.testing.conformance.global_state import unchanged
from engine.testing.conformance.suite import Suite, ask, check
from engine.token_range import Shapes, TokenRange

TOKENS = 32
"""The largest number of tokens of the checks."""
WIDTH = 8
SIZES = (1, 2, 3, 7, TOKENS - 1, TOKENS)


def _cacheable(suite: type[Suite]) -> str:
    return "" if suite.plugin().CACHEABLE else "it declares CACHEABLE = False"


def _capturable(suite: type[Suite]) -> str:
    return "" if suite.plugin().CAPTURABLE else "it declares CAPTURABLE = False"


def block(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a piece of a decoder computes: x [T, 8], weight [16, 8], ids [T] int64.

    A norm, a projection that is cut in two, a gate, a residual; and an integer result.
    """
    up, gate = F.linear(F.rms_norm(x, (WIDTH,), None, 1e-5), weight).chunk(2, -1)
    return F.silu(gate) * up + x, ids * 2 + 1


def traced(function: Callable[..., Any], tokens: TokenRange) -> tuple[fx.GraphModule, list[Any]]:
    """Return the graph of a function of (x, weight, ids) for a range of tokens, with inputs."""
    graph, shapes = fx.symbolic_trace(function), Shapes(tokens)
    for node in graph.graph.nodes:
        # Dynamo's graphs have no annotations either.
        node.type = None
    graph.recompile()
    size = shapes.num_tokens
    with shapes.mode:
        values = (
            torch.empty(size, WIDTH),
            torch.empty(2 * WIDTH, WIDTH),
            torch.empty(size, dtype=torch.int64),
        )
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), values, strict=True):
        node.meta["example_value"] = value
    inputs = list(shapes.inputs(graph))
    with torch.inference_mode(mode=False), shapes.mode:
        _Annotate(graph).run(*inputs)
    return graph, inputs


class _Annotate(fx.Interpreter):
    """Notes each node's fake value, as the core does before it calls a backend."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["example_value"] = value
        return value


def arguments(num_tokens: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return random arguments of `block`."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(num_tokens, WIDTH, generator=generator),
        torch.randn(2 * WIDTH, WIDTH, generator=generator),
        torch.randint(0, 99, (num_tokens,), generator=generator),
    )


class BackendConformance(PluginConformance):
    """Checks of a backend that runs on the CPU."""

    KIND = "backends"
    SETTING = "compilation_config.backend"
    _made: ClassVar[Any] = None

    @classmethod
    def compiled(cls) -> tuple[Backend, Callable[..., Any]]:
        """Compile the block for any number of tokens; once for all checks, since it takes long."""
        if cls.__dict__.get("_made") is None:
            backend = cls.make()
            graph, inputs = traced(block, TokenRange(1, TOKENS))
            cls._made = (backend, backend.compile(graph, inputs, dynamic=True))
        made: tuple[Backend, Callable[..., Any]] = cls._made
        return made

    @property
    def numerics(self) -> Numerics:
        """What the backend declares."""
        declared: Numerics = self.plugin().NUMERICS
        return declared

    def compare(self, call: Callable[..., Any], sizes: Sequence[int], what: str) -> None:
        """Ask that a callable gives what the block gives."""
        for num_tokens in sizes:
            args = arguments(num_tokens, seed=num_tokens)
            with torch.inference_mode():
                got, wanted = list(call(*args)), list(block(*args))
            ask_all_equal(got, wanted, f"{what}, {num_tokens} tokens", self.numerics)

    @check(quick=True)
    def test_every_number_of_tokens_of_a_range(self) -> None:
        """What is compiled with symbolic sizes serves every number of tokens of its range."""
        self.compare(self.compiled()[1], SIZES, "a symbolic number of tokens")

    @check()
    def test_one_exact_number_of_tokens(self) -> None:
        """What is compiled for one number of tokens (`dynamic=False`) is right for that one."""
        backend = self.make()
        for num_tokens in (1, 6):
            graph, inputs = traced(block, TokenRange(num_tokens, num_tokens))
            call = backend.compile(graph, inputs, dynamic=False)
            self.compare(call, (num_tokens,), "a constant number of tokens")

    @check()
    def test_inputs_a_b_a(self) -> None:
        """Nothing of an example or an earlier call is frozen: weights too are arguments."""
        call, results = self.compiled()[1], []
        for seed in (1, 2, 1):
            args = arguments(5, seed)
            with torch.inference_mode():
                results.append(call(*args)[0].clone())
                ask_equal(results[-1], block(*args)[0], f"inputs {'_AB'[seed]}", self.numerics)
        ask_equal(results[2], results[0], "inputs A after B", Numerics.BITWISE)

    @check()
    def test_a_result_outlives_the_next_call(self) -> None:
        """One callable serves all equal layers, so a result stays what it is while the callable
        runs again; and no argument is changed.
        """
        call = self.compiled()[1]
        args, others = arguments(5, 1), arguments(5, 2)
        copies = [argument.clone() for argument in args]
        with torch.inference_mode():
            first = call(*args)[0]
            kept = first.clone()
            call(*others)
            # As a stack of layers does: the result is the next call's input.
            second, _ = call(first, *args[1:])
            ask(torch.equal(first, kept), "a result changed while the callable ran again")
            ask_equal(second, block(kept, *args[1:])[0], "a result as an input", self.numerics)
        for index, (argument, copy) in enumerate(zip(args, copies, strict=True)):
            ask(torch.equal(argument, copy), f"argument {index} was written to")

    @check()
    def test_inputs_may_be_views(self) -> None:
        """Arguments may be views into larger buffers, with storage offsets."""
        call, (x, weight, ids) = self.compiled()[1], arguments(7)
        wide = torch.full((12, WIDTH), float("nan"))
        wide[3:10] = x
        with torch.inference_mode():
            got, wanted = call(wide[3:10], weight, ids), block(x, weight, ids)
        ask_all_equal(list(got), list(wanted), "rows 3 to 9 of a buffer", self.numerics)

    @check()
    def test_the_graph_is_left_as_it_is(self) -> None:
        """The caller's graph isn't changed: its copies are compiled for other ranges."""
        graph, inputs = traced(block, TokenRange(1, TOKENS))
        before = graph.code
        self.make().compile(graph, inputs, dynamic=True)
        ask(graph.code == before, f"the graph was\n{before}\nand is now\n{graph.code}")

    @check()
    def test_nothing_global_is_left_changed(self) -> None:
        """Compiling leaves settings, environment and random numbers as they were, also where it
        fails; and so does a call.
        """
        graph, inputs = traced(lambda x, w, ids: (x + w.sum(), ids), TokenRange(1, TOKENS))
        args = arguments(3)
        with unchanged("compiling and a call"):
            self.make().compile(graph, inputs, dynamic=True)(*args)

        def bad(x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> Any:
            return (_no_such_operator(x) @ weight.T, ids)

        graph = fx.symbolic_trace(bad)
        with unchanged("compiling a graph with an unknown function"):
            try:
                self.make().compile(graph, inputs, dynamic=True)
            # What it raises is its own business; what it leaves isn't.
            except Exception as error:  # noqa: BLE001 - contained, see above
                del error

    @check()
    def test_artifacts_exist_if_and_only_if_it_says_so(self) -> None:
        """`CACHEABLE` says whether `save` gives bytes; without it, `load` raises ValueError."""
        backend, call = self.compiled()
        data = backend.save(call)
        if self.plugin().CACHEABLE:
            ask(isinstance(data, bytes) and data, f"it is CACHEABLE, and save gave {type(data)}")
            return
        ask(data is None, f"it isn't CACHEABLE, and save gave {type(data)}")
        self._ask_refused(b"anything", "bytes")

    @check(needs=_cacheable)
    def test_a_saved_artifact_gives_the_same(self) -> None:
        """What `load` restores, in another instance, gives what was saved gives, bit for bit."""
        backend, call = self.compiled()
        loaded = self.make().load(self._artifact(backend, call), *self._fresh())
        self.compare(loaded, SIZES, "loaded")
        for num_tokens in (1, 5):
            args = arguments(num_tokens)
            with torch.inference_mode():
                difference = first_difference(loaded(*args)[0], call(*args)[0], Numerics.BITWISE)
            ask(not difference, f"what was saved and what was loaded differ: {difference}")

    @check(needs=_cacheable)
    def test_a_bad_artifact_is_a_value_error(self) -> None:
        """Bytes that are no artifact of the backend, or a part of one, raise ValueError, and
        nothing else: the caller then compiles anew.
        """
        data = self._artifact(*self.compiled())
        for bad, what in (
            (b"", "nothing"),
            (b"nonsense", "nonsense"),
            (data[: len(data) // 2], "half an artifact"),
            (data[: len(data) // 3] + bytes(64), "an artifact that ends in zeros"),
        ):
            self._ask_refused(bad, what)

    @check(needs=_cacheable)
    def test_an_artifact_holds_no_path_of_this_machine(self) -> None:
        """Artifacts can be moved: no working or home directory is in one."""
        from pathlib import Path

        data = self._artifact(*self.compiled())
        for path in (Path.cwd(), Path.home()):
            if len(path.parts) > 1:
                ask(str(path).encode() not in data, f"{path} is in the artifact")

    @check()
    def test_a_break_op_in_a_graph_runs_each_time(self) -> None:
        """A whole graph has attention and other break ops in it: they run at each call, in order,
        and what they write to their caller's buffer is what comes after.
        """
        graph, inputs = traced(_with_break_op, TokenRange(1, TOKENS))
        call = self.make().compile(graph, inputs, dynamic=True)
        for num_tokens in (1, 5, 5, TOKENS):
            args, before = arguments(num_tokens, seed=num_tokens), len(_counted)
            with torch.inference_mode():
                got = call(*args)[0]
                ran = len(_counted) - before
                wanted = _with_break_op(*args)[0]
            ask(ran == 1, f"the break op ran {ran} times in one call")
            ask_equal(got, wanted, f"behind a break op, {num_tokens} tokens", self.numerics)

    @check()
    def test_torch_compile_takes_it(self) -> None:
        """`torch_backend` is what `torch.compile` takes as a backend."""
        call = torch.compile(block, backend=self.make().torch_backend(), fullgraph=True)
        args = arguments(4)
        with torch.inference_mode():
            got, wanted = call(*args), block(*args)
        ask_all_equal(list(got), list(wanted), "under torch.compile", self.numerics)

    @check(needs=_capturable)
    def test_what_it_makes_can_be_recorded(self) -> None:
        """`CAPTURABLE` promises callables that a graph can hold: they replay on other inputs."""
        call = self.compiled()[1]
        x, weight, ids = arguments(4)

        def model(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            del positions
            result: torch.Tensor = call(x, weight, input_ids)[0]
            return result

        device = SimulatedGraphDevice()
        adopted = device.adopt(model, compiled=True)
        context = ForwardContext(
            BatchShape(4, 1, 4, uniform_decode=False), OneRequestAttention(), None, (), ()
        )
        with torch.inference_mode(), forward_context(context):
            with device.session():
                device.begin()
                hidden = adopted(ids, ids)
                graph = device.end()
            if graph is None:
                ask(held=False, found="nothing of it was recorded")
                return
            x.copy_(arguments(4, seed=5)[0])
            graph.replay()
            ask_equal(hidden, block(x, weight, ids)[0], "a replay on another x", self.numerics)

    @check()
    def test_two_instances_of_one_process(self) -> None:
        """What one instance compiled is not what another one runs."""
        first, other = self.compiled()[1], self.make()
        graph, inputs = traced(lambda x, w, ids: (x * 3 + w.sum(), ids), TokenRange(1, TOKENS))
        tripled = other.compile(graph, inputs, dynamic=True)
        args = arguments(5)
        with torch.inference_mode():
            got = tripled(*args)[0]
        ask_equal(got, args[0] * 3 + args[1].sum(), "the second graph", self.numerics)
        self.compare(first, (5,), "the first graph, after a second")

    def _artifact(self, backend: Backend, call: Callable[..., Any]) -> bytes:
        data = backend.save(call)
        ask(isinstance(data, bytes), f"save gave {type(data)}")
        return data or b""

    def _fresh(self) -> tuple[fx.GraphModule, list[Any]]:
        return traced(block, TokenRange(1, TOKENS))

    def _ask_refused(self, artifact: bytes, what: str) -> None:
        try:
            call = self.make().load(artifact, *self._fresh())
        except ValueError:
            return
        except Exception as error:
            raise type(error)(f"load of {what} raised no ValueError but: {error}") from error
        ask(held=False, found=f"load took {what} and returned {call!r}")


_counted: list[int] = []


@break_op("engine_conformance::doubled", mutates_args=("out",))
def _doubled(x: torch.Tensor, out: torch.Tensor) -> None:
    """Write 2x to out; a fake call isn't counted."""
    _counted.append(len(x))
    torch.mul(x, 2, out=out)


def _with_break_op(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    before = x + weight.sum()
    out = torch.empty_like(before)
    torch.ops.engine_conformance.doubled(before, out)
    return F.silu(out) + x, ids


@fx.wrap
def _no_such_operator(x: torch.Tensor) -> torch.Tensor:
    """Stand for something that no compiler knows."""
    raise NotImplementedError("nobody can compile this")
