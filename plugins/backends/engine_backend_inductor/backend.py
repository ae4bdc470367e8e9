"""Compiles one FX graph with inductor, by itself: no Dynamo, no guards, savable."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import fx

from engine.plugin import Numerics, StartupCost
from engine.strategies import Backend


class InductorOptions(BaseModel):
    """Any option of `torch._inductor.config`, by name (`max_autotune=true`)."""

    model_config = ConfigDict(frozen=True, extra="allow")


class InductorBackend(Backend):
    """PyTorch's compiler: fused C++ on the CPU, Triton kernels on a GPU."""

    NAME = "inductor"
    SUMMARY = "compile with PyTorch's inductor: fused kernels, artifacts are kept between runs"
    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.SECONDS
    CACHEABLE = True
    OPTIONS = InductorOptions

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self._patches: dict[str, Any] = dict(self.options.model_extra or {})

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Compile a graph; `dynamic` keeps its symbolic sizes."""
        import torch._inductor as inductor

        return inductor.standalone_compile(
            graph,
            list(example_inputs),
            dynamic_shapes="from_graph" if dynamic else "from_example_inputs",
            options={"config_patches": self._patches} if self._patches else {},
        )

    def torch_backend(self) -> tuple[str | Callable[..., Any], dict[str, Any]]:
        """Return inductor under its own name, so that torch.compile drives it as it ships."""
        return "inductor", self._patches

    def save(self, compiled: Callable[..., Any]) -> bytes | None:
        """Serialise the artifact, kernels included."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "artifact"
            try:
                compiled.save(path=str(path), format="binary")  # type: ignore[attr-defined]  # CompiledArtifact
            except RuntimeError:
                # Something in the graph can't be serialised; it is compiled again next time.
                return None
            return path.read_bytes()

    def load(
        self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Restore an artifact; inductor itself checks that this torch wrote it."""
        del graph, example_inputs
        from torch._inductor.standalone_compile import CompiledArtifact

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "artifact"
            path.write_bytes(artifact)
            try:
                return CompiledArtifact.load(path=str(path), format="binary")
            except (AssertionError, RuntimeError, OSError, EOFError, KeyError) as error:
                raise ValueError(f"inductor can't load the artifact: {error!r}") from error
