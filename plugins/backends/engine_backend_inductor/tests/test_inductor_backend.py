"""Inductor behind the backend contract: options, artifacts, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import fx
from torch.nn import functional as F

from engine.errors import CompileError
from engine.testing import BackendConformance
from engine.token_range import Shapes, TokenRange
from engine_backend_inductor.backend import InductorBackend
from engine_backend_inductor.bundle import KernelPool, pack, unpack
from engine_backend_inductor.options import InductorOptions


# From modules of PyTorch that inductor imports.
@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")
class TestContract(BackendConformance):
    strategy = "inductor"


RANGE = TokenRange(1, 64)


def traced(function: Callable[[torch.Tensor], Any]) -> tuple[fx.GraphModule, list[Any]]:
    """Return a graph over `x [T, 8]` with a symbolic T, and its example inputs."""
    graph, shapes = fx.symbolic_trace(function), Shapes(RANGE)
    (x,) = graph.graph.find_nodes(op="placeholder")
    with shapes.mode:
        x.meta["example_value"] = torch.empty(shapes.num_tokens, 8)
    return graph, list(shapes.inputs(graph))


def backend(**options: Any) -> InductorBackend:
    return InductorBackend(InductorOptions(**options))


# Options


@pytest.mark.parametrize(
    "options",
    [{"max_autotune": True}, {"cpp.threads": 1}, {"cpp": {"threads": 1}}, {"cpp.simdlen": 256}],
    ids=str,
)
def test_any_setting_of_inductor_is_an_option(options: dict[str, Any]) -> None:
    patches = InductorOptions(**options).patches
    assert len(patches) == 1
    assert all(name in torch._inductor.config.get_config_copy() for name in patches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_autotun": True}, "no setting 'max_autotun'; did you mean max_autotune"),
        ({"cpp.thread": 1}, "did you mean cpp.threads"),
        ({"max_autotune": "yes"}, "max_autotune='yes': inductor wants a bool"),
        ({"cpp": {"threads": "two"}}, "cpp.threads='two': inductor wants a int"),
    ],
)
def test_an_option_that_inductor_does_not_have_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        InductorOptions(**options)


def test_the_fingerprint_follows_options_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = backend().fingerprint()
    assert backend().fingerprint() == plain
    assert backend(max_autotune=True).fingerprint() != plain
    with torch._inductor.config.patch(epilogue_fusion=False):
        assert backend().fingerprint() != plain
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert backend().fingerprint() != plain


def test_who_compiles_and_where_it_writes_is_not_in_the_fingerprint() -> None:
    plain = backend().fingerprint()
    with torch._inductor.config.patch({"cpp.cxx": (None, "/nowhere/c++"), "worker_log_path": "x"}):
        assert backend().fingerprint() == plain


# Compiling


def state() -> tuple[Any, ...]:
    """Return everything global that inductor could leave changed."""
    return (
        dict(os.environ),
        torch._inductor.config.get_config_copy(),
        torch._functorch.config.get_config_copy(),
        torch._dynamo.config.get_config_copy(),
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
    )


def test_what_is_compiled_can_be_kept_and_loaded_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "empty"))
    graph, inputs = traced(lambda x: (F.silu(x) * 2, x.sum(-1)))
    before = state()
    first, second = backend(), backend()
    compiled = first.compile(graph, inputs, dynamic=True)
    assert state() == before
    artifact = first.save(compiled)
    assert artifact is not None
    assert str(tmp_path).encode() not in artifact

    def started(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"a program was started: {args[0]}")

    monkeypatch.setattr(subprocess, "Popen", started)
    graph, inputs = traced(lambda x: (F.silu(x) * 2, x.sum(-1)))
    loaded = second.load(artifact, graph, inputs)
    assert state() == before
    code = first.generated_code(compiled)
    assert "def call(" in code["output_code.py"]
    assert second.generated_code(loaded) == code
    assert not (tmp_path / "empty").exists()
    for num_tokens in (1, 2, 7, 64):
        x = torch.randn(num_tokens, 8)
        for call in (compiled, loaded):
            activated, total = call(x)
            torch.testing.assert_close(activated, F.silu(x) * 2)
            torch.testing.assert_close(total, x.sum(-1))


def test_code_that_torch_compile_asked_for_can_be_read() -> None:
    made, compiled = backend(), list[Any]()

    def watched(graph: fx.GraphModule, inputs: Any) -> Any:
        compiled.append(made.torch_backend()(graph, inputs))
        return compiled[-1]

    x = torch.randn(5, 8)
    with torch.inference_mode():
        result = torch.compile(lambda x: F.silu(x) * 3, backend=watched)(x)
    torch.testing.assert_close(result, F.silu(x) * 3)
    (code,) = made.generated_code(compiled[0]).values()
    assert "def call(" in code


def test_a_graph_that_cannot_be_compiled_leaves_everything_as_it_was() -> None:
    def fails(graph: Any) -> Any:
        raise RuntimeError("no such kernel")

    graph, inputs = traced(lambda x: (x * 2,))
    made = backend()
    made._patches["post_grad_custom_post_pass"] = fails
    before = state()
    with pytest.raises(Exception, match="no such kernel"):
        made.compile(graph, inputs, dynamic=True)
    assert state() == before


def test_without_a_compiler_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none(*args: Any) -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    graph, inputs = traced(lambda x: (F.silu(x) * 3,))
    with pytest.raises(CompileError, match=r"needs a C\+\+ compiler.*install g\+\+"):
        backend().compile(graph, inputs, dynamic=True)


# Artifacts


def test_packing_keeps_every_file_where_it_was(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file.py").write_text("x = 1")
    (source / "deep" / "held.lock").touch()
    unpack(pack(source), target)
    assert (target / "deep" / "file.py").read_text() == "x = 1"
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["file.py"]


def test_a_kernel_that_nothing_calls_is_not_kept(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "k").mkdir(parents=True)
    for name in ("used", "foreign"):
        source = f"void {name}() {{}}\n"
        (folder / "k" / f"{name}.cpp").write_text(f"{source}\n// Python bindings to call it\n")
        (folder / "k" / f"{name}.so").write_bytes(name.encode())
    (folder / "k" / "caller.py").write_text("kernel = load('''void used() {}\n''')")
    unpack(pack(folder), tmp_path / "b")
    found = {path.name for path in (tmp_path / "b").rglob("*") if path.is_file()}
    assert found == {"caller.py", "used.cpp", "used.so"}


def test_kernels_are_offered_to_the_next_compilation(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "k").mkdir()
    (folders[0] / "k" / "one.cpp").write_text("source")
    (folders[0] / "k" / "one.so").write_bytes(b"code")
    pool = KernelPool()
    for folder in folders[:2]:
        pool.offer(folder)
        pool.collect(folder)
    pool.offer(folders[2])
    assert (folders[2] / "k" / "one.so").read_bytes() == b"code"


def test_an_archive_without_inductors_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme").write_text("something else")
    graph, inputs = traced(lambda x: (x * 2,))
    with pytest.raises(ValueError, match="inductor can't load"):
        backend().load(pack(tmp_path), graph, inputs)
