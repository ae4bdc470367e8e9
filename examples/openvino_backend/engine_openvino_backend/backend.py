"""OpenVINO as a compiler backend."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from pydantic import BaseModel, ConfigDict
from torch import fx
from torch._guards import tracing
from torch.export import Dim

from engine.facts import Facts
from engine.plugin import Numerics, Refusal, StartupCost
from engine.strategies import Backend
from engine_openvino_backend.artifact import IR, pack, unpack
from engine_openvino_backend.segments import cut, is_foreign, segments_of, without_sizes

_FLOATS = {"float32": ov.Type.f32}
VERSION = ov.get_version()


class OpenVinoOptions(BaseModel):
    """What OpenVINO is asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    threads: int = 0
    """Threads of OpenVINO; as many as PyTorch uses by default."""


class OpenVinoBackend(Backend):
    """Exports each graph, converts it to OpenVINO's representation and compiles it for the CPU.

    Attention and other operators that aren't PyTorch's own run in PyTorch, between segments.
    """

    NAME = "openvino_ir"
    SUMMARY = "compile with OpenVINO for the CPU; artifacts are OpenVINO's own IR"
    DEVICES = frozenset({"cpu"})
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.SECONDS
    OPTIONS = OpenVinoOptions
    # Its threads are its own: no graph device sees what they do.
    CAPTURABLE = False
    CACHEABLE = True

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self._core = ov.Core()
        self._made: dict[Callable[..., Any], bytes] = {}

    @classmethod
    def refuse(cls, facts: Facts) -> Refusal | None:
        """Refuse dtypes that numpy, through which tensors pass, doesn't know."""
        if facts.dtype not in _FLOATS:
            return Refusal(
                f"openvino_ir computes in {' or '.join(_FLOATS)}, not in {facts.dtype}",
                "pass --dtype float32, or choose another backend",
            )
        return super().refuse(facts)

    def fingerprint(self) -> str:
        """Return what identifies the code: OpenVINO's version too."""
        return f"{super().fingerprint()}/openvino {VERSION}"

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Compile each segment between foreign operators."""
        made: list[IR] = []

        def convert(segment: fx.GraphModule) -> ov.Model:
            model = converted(segment)
            made.append(serialized(model))
            return model

        call = self._assemble(graph, convert)
        self._made[call] = pack(made, VERSION)
        return call

    def save(self, compiled: Callable[..., Any]) -> bytes | None:
        """Return the IR of every segment."""
        return self._made.get(compiled)

    def load(
        self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile from the IR: nothing is traced or converted.

        Raises:
            ValueError: it is no artifact of this version, or of another graph.
        """
        stored = iter(unpack(artifact, VERSION))

        def read(_segment: fx.GraphModule) -> ov.Model:
            try:
                xml, constants = next(stored)
            except StopIteration:
                raise ValueError("it has too few segments") from None
            return self._core.read_model(xml, constants)

        return self._assemble(graph, read)

    def _assemble(
        self, graph: fx.GraphModule, make: Callable[[fx.GraphModule], ov.Model]
    ) -> Callable[..., Any]:
        segments = cut(without_sizes(graph))
        for name, segment in segments_of(segments):
            if not any(is_foreign(node) for node in segment.graph.nodes) and _computes(segment):
                setattr(segments, name, _Segment(self._compiled(make(segment)), segment))
        forward: Callable[..., Any] = segments.forward
        return forward

    def _compiled(self, model: ov.Model) -> ov.CompiledModel:
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(self.options.threads or torch.get_num_threads()),
        }
        return self._core.compile_model(model, "CPU", settings)


class _Segment(torch.nn.Module):
    """Runs one compiled segment; takes and gives what the traced one does."""

    def __init__(self, compiled: ov.CompiledModel, traced: fx.GraphModule) -> None:
        super().__init__()
        self._run = compiled.create_infer_request().infer
        inputs = traced.graph.find_nodes(op="placeholder")
        self._read = [at for at, node in enumerate(inputs) if node.users]
        self._single = isinstance(traced.graph.output_node().args[0], fx.Node)

    def forward(self, *args: Any) -> Any:
        """Run on views of the tensors; results are copies, which the next run leaves alone."""
        arrays = {slot: args[at].numpy(force=True) for slot, at in enumerate(self._read)}
        results = self._run(arrays, share_inputs=True, share_outputs=False)
        tensors = tuple(torch.from_numpy(result) for result in results.to_tuple())
        return tensors[0] if self._single else tensors


class _Positional(torch.nn.Module):
    """A graph whose arguments have no names, whoever made it."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *args: torch.Tensor) -> Any:
        """Run the graph."""
        return self.graph(*args)


def _computes(segment: fx.GraphModule) -> bool:
    return any(node.op.startswith("call") for node in segment.graph.nodes)


def converted(segment: fx.GraphModule) -> ov.Model:
    """Return OpenVINO's model of a graph, for any number of tokens that its shapes allow."""
    inputs, shapes = [], []
    for node in segment.graph.find_nodes(op="placeholder"):
        value = node.meta["example_value"]
        symbolic = {dim for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt)}
        hints = [s.node.hint if d in symbolic else s for d, s in enumerate(value.shape)]
        inputs.append(torch.zeros(hints, dtype=value.dtype))
        shapes.append(dict.fromkeys(symbolic, Dim.DYNAMIC))
    # Dynamo may be at work on another graph, of which this one must know nothing.
    with torch.inference_mode(mode=False), tracing(None):
        exported = torch.export.export(
            _Positional(segment), tuple(inputs), dynamic_shapes=(tuple(shapes),)
        )
    return ov.convert_model(exported)


def serialized(model: ov.Model) -> IR:
    """Return a model's IR."""
    with tempfile.TemporaryDirectory() as folder:
        xml, constants = Path(folder) / "model.xml", Path(folder) / "model.bin"
        ov.serialize(model, xml, constants)
        return xml.read_bytes(), constants.read_bytes()
