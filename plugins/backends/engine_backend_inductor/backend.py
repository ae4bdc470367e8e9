"""Compiles one FX graph with inductor, by itself: no Dynamo, no guards, savable."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel
from torch import fx

from engine.errors import CompileError
from engine.plugin import Numerics, StartupCost
from engine.strategies import Backend
from engine_backend_inductor.bundle import KernelPool, PrivateFolder, pack, prebuilt_kernels, unpack
from engine_backend_inductor.options import InductorOptions

_DEFAULTS = {
    # Every C++ compiler that can compile PyTorch's headers knows these instructions, and the
    # processor is asked anyway; to find out by experiment takes as long as compiling a model.
    "cpp.vec_isa_ok": True,
    # Layouts are settled at trace time; checking them again costs every call microseconds.
    "size_asserts": False,
    "alignment_asserts": False,
    "scalar_asserts": False,
}
"""Where this backend differs from inductor's own settings; the user's options win."""

_OUT_OF_KEY = frozenset(
    {
        "autoheuristic_log_path",
        "cpp.cxx",
        "cuda.cuda_cxx",
        "disable_progress",
        "global_cache_dir",
        "rocm.ck_dir",
        "torchinductor_worker_logpath",
        "triton.proton_output_dir",
        "verbose_progress",
        "worker_log_path",
    }
)
"""Settings that say which program compiles, where it lies and where it writes. What comes out
computes the same, and must be found where there is no compiler at all."""


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
        self._patches: dict[str, Any] = {**_DEFAULTS, **self.options.patches}
        self._kernels = KernelPool()
        # The folder of each compiled graph lives as long as the callable.
        self._folders: WeakKeyDictionary[Any, PrivateFolder] = WeakKeyDictionary()
        # Of what torch.compile drives, the files are in a folder that all share.
        self._files: WeakKeyDictionary[Any, tuple[Path, ...]] = WeakKeyDictionary()

    def prepare(self) -> None:
        """Import inductor: most of a second, which a compile phase should not be charged with."""
        import_inductor()

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Compile a graph; its sizes are those of the example inputs, symbolic ones included."""
        del dynamic
        inductor = import_inductor()
        from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler

        with self._private_folder() as folder, _shapes_of(example_inputs) as dynamic_shapes:
            self._kernels.offer(folder.path)
            try:
                compiled: Callable[..., Any] = inductor.standalone_compile(
                    graph, list(example_inputs), dynamic_shapes=dynamic_shapes
                )
            except (InductorError, CppCompileError, InvalidCxxCompiler) as error:
                cause = getattr(error, "inner_exception", error)
                if not isinstance(cause, CppCompileError | InvalidCxxCompiler):
                    raise
                raise CompileError(
                    "backend inductor needs a C++ compiler that can compile PyTorch's headers "
                    f"({str(cause).strip().splitlines()[0]})",
                    "install g++, name one in CXX, or choose another backend",
                ) from error
            self._kernels.collect(folder.path)
        self._folders[compiled] = folder
        return compiled

    @contextmanager
    def _private_folder(self) -> Iterator[PrivateFolder]:
        """Give inductor a folder of its own and this backend's options, for one graph."""
        from torch._inductor import config
        from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

        folder = PrivateFolder()
        patched = config.patch(self._patches)
        with _environment_kept(), temporary_cache_dir(str(folder.path)), patched:
            yield folder

    def torch_backend(self) -> Callable[..., Any]:
        """Return inductor as torch.compile drives it, with the user's settings and no others."""

        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            inductor = import_inductor()
            patches = self.options.patches
            loaded: list[ModuleType] = inductor.codecache.PyCodeCache.modules
            before = len(loaded)
            with _environment_kept():
                compiled: Any = inductor.compile_fx.compile_fx(
                    graph, inputs, config_patches=patches
                )
            self._files[compiled] = tuple(Path(m.__file__) for m in loaded[before:] if m.__file__)
            return compiled  # type: ignore[no-any-return]  # its type lists what others ask for

        return compile_graph

    def generated_code(self, compiled: Callable[..., Any]) -> Mapping[str, str]:
        """Return inductor's Python, which holds the source of its kernels; also of what is kept."""
        folder = self._folders.get(compiled)
        paths = self._files.get(compiled, ()) if folder is None else folder.path.glob("*/*.py")
        texts = [path.read_text() for path in sorted(paths) if path.exists()]
        return {f"output_code{f'_{n}' * (n > 1)}.py": text for n, text in enumerate(texts, 1)}

    def save(self, compiled: Callable[..., Any]) -> bytes | None:
        """Pack what inductor made, kernels included; None for a graph that it doesn't keep."""
        folder = self._folders[compiled].path
        return pack(folder) if (folder / "aotautograd").is_dir() else None

    def load(
        self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Restore what `save` packed; nothing is compiled."""
        del graph, example_inputs
        import_inductor()
        from torch._inductor.standalone_compile import CompiledArtifact

        with self._private_folder() as folder:
            unpack(artifact, folder.path)
            try:
                with prebuilt_kernels(folder.path):
                    loaded = CompiledArtifact.load(path=str(folder.path), format="unpacked")
            except (AssertionError, RuntimeError, OSError, EOFError, KeyError) as error:
                raise ValueError(f"inductor can't load the artifact: {error!r}") from error
        self._folders[loaded] = folder
        return loaded

    def fingerprint(self) -> str:
        """Add every setting of inductor, which its environment may change, and Triton's version."""
        from torch._functorch import config as functorch_config
        from torch._inductor import config

        with config.patch(self._patches):
            settings = [
                sorted(item for item in config.save_config_portable().items() if _shapes(item[0])),
                sorted(functorch_config.save_config_portable().items()),
                torch.get_float32_matmul_precision(),
                torch.are_deterministic_algorithms_enabled(),
                torch.get_num_threads(),
                _version("triton"),
            ]
        return f"{super().fingerprint()}/{hashlib.sha256(repr(settings).encode()).hexdigest()}"


def _shapes(setting: str) -> bool:
    return setting not in _OUT_OF_KEY


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo what inductor writes into the environment.

    Its cache directory's name, and an address in this process, which is wrong in any other.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def import_inductor() -> Any:
    """Import inductor without the warnings about PyTorch's own use of what it deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import torch._inductor.compile_fx
        import torch._inductor.standalone_compile  # noqa: F401 - wanted as an attribute
    return import_module("torch._inductor")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


@contextmanager
def _shapes_of(example_inputs: Sequence[Any]) -> Iterator[Any]:
    """Say to inductor where the sizes of fake example inputs come from."""
    from torch._guards import TracingContext, detect_fake_mode, tracing

    mode = detect_fake_mode(example_inputs)
    if mode is None:
        yield "from_example_inputs"
    else:
        with tracing(TracingContext(mode)):
            yield "from_tracing_context"
