"""Backends that are registered with torch.compile, under their own names."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends import registry as torch_registry

from engine.strategies import Backend
from engine_family_dynamo.backend import DynamoBackend
from engine_family_dynamo.family import DynamoFamily


class Toy(torch.nn.Module):
    """Something to compile."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.nn.functional.silu(x) * 2,)


@pytest.fixture
def install_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], str]]:
    """Install a distribution with a backend in PyTorch's entry-point group."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch_registry, "_BACKENDS", dict(torch_registry._BACKENDS))
    modules = []

    def install(name: str, source: str) -> str:
        module = f"stranger_{uuid.uuid4().hex}"
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-3.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 3.1\n")
        (info / "entry_points.txt").write_text(
            f"[torch_dynamo_backends]\n{name} = {module}:compile_graph\n"
        )
        torch_registry._lazy_import()
        torch_registry._discover_entrypoint_backends.cache_clear()
        torch_registry._discover_entrypoint_backends()
        modules.append((module, name))
        return module

    yield install
    for module, name in modules:
        sys.modules.pop(module, None)
        torch_registry._COMPILER_FNS.pop(name, None)


def made(name: str, **options: Any) -> Backend:
    plugin = DynamoFamily.make(name)
    assert plugin is not None
    assert issubclass(plugin, DynamoBackend)
    return plugin(plugin.OPTIONS(**options))


def run(backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
    graph, x = fx.symbolic_trace(Toy()), torch.randn(3, 4)
    compiled = backend.compile(graph, [x], dynamic=False)
    return compiled(x)[0], Toy()(x)[0]


def test_pytorchs_own_backends_are_members_those_for_its_tests_are_not_listed() -> None:
    names = DynamoFamily.names()
    assert {"aot_eager", "inductor", "cudagraphs"} <= set(names)
    assert not [name for name in names if "testing" in name]


def test_a_backend_that_pytorch_keeps_for_debugging_works_by_name() -> None:
    result, expected = run(made("aot_eager"))
    assert torch.equal(result, expected)


def test_a_name_that_pytorch_does_not_know_is_no_member() -> None:
    assert DynamoFamily.make("turbo_fusion") is None


def test_a_strangers_backend_is_found_by_its_entry_point(
    install_backend: Callable[[str, str], str],
) -> None:
    source = "def compile_graph(graph, inputs):\n    return lambda *args: graph(*args)\n"
    module = install_backend("Turbo-Fusion", source)
    backend = made("turbo_fusion")
    assert (backend.NAME, f"{module} 3.1" in backend.SUMMARY) == ("turbo_fusion", True)
    assert torch.equal(*run(backend))


def test_options_go_to_the_backend_as_torch_compile_passes_them(
    install_backend: Callable[[str, str], str],
) -> None:
    source = """
def compile_graph(graph, inputs, *, options):
    return lambda *args: [result + options["shift"] for result in graph(*args)]
"""
    install_backend("shifting", source)
    result, expected = run(made("shifting", shift=3))
    assert torch.equal(result, expected + 3)


def test_a_strangers_failing_import_is_his_error(
    install_backend: Callable[[str, str], str],
) -> None:
    install_backend("cracked", "import a_module_that_is_missing")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        DynamoFamily.make("cracked")


def test_what_torch_compile_calls_is_the_backends_own_function() -> None:
    backend = made("aot_eager")
    compiled = torch.compile(Toy(), backend=backend.torch_backend(), fullgraph=True)
    x = torch.randn(2, 32)
    assert torch.equal(compiled(x)[0], Toy()(x)[0])
