"""Kernels can be compiled side by side before anything needs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.ops import compiling_ahead, launch

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add(x, out, size, constant: tl.constexpr, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < size) + constant, mask=at < size)
"""


class Recorded:
    """Stands for a kernel where no GPU is: notes how it is launched."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.launches.append((grid, args, options))


def test_a_launch_is_one_of_triton() -> None:
    kernel = Recorded()
    launch(kernel, (3, 2), 1, "x", block=8)
    assert kernel.launches == [((3, 2), (1, "x"), {"block": 8})]


def test_without_a_gpu_nothing_is_held_back() -> None:
    kernel = Recorded()
    with compiling_ahead(torch.device("cpu")) as held_back:
        launch(kernel, (1,), block=8)
    assert not held_back
    assert len(kernel.launches) == 1


def kernel_of(source: str, path: Path) -> Any:
    """Return the kernel `add` of a module that is written to `path`: Triton reads its source."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.add


@pytest.mark.gpu
def test_kernels_are_compiled_and_not_run(tmp_path: Path) -> None:
    kernel = kernel_of(KERNEL, tmp_path / "added.py")
    x, out = torch.randn(2, 7, device="cuda").unbind(0)
    before = out.clone()
    with compiling_ahead(torch.device("cuda")):
        for constant in (1, 2, 2, 3):
            launch(kernel, (1,), x, out, 7, constant=constant, block=8)
        torch.cuda.synchronize()
        assert torch.equal(out, before)
    known = kernel.device_caches[torch.cuda.current_device()][0]
    assert len(known) == 3
    launch(kernel, (1,), x, out, 7, constant=2, block=8)
    assert len(known) == 3
    assert torch.equal(out, x + 2)


@pytest.mark.gpu
def test_what_does_not_compile_says_so_when_it_is_launched(tmp_path: Path) -> None:
    kernel = kernel_of(KERNEL.replace("tl.load(x", "tl.no_such_thing(x"), tmp_path / "broken.py")
    x = torch.randn(7, device="cuda")
    with compiling_ahead(torch.device("cuda")):
        launch(kernel, (1,), x, x, 7, constant=1, block=8)
    with pytest.raises(Exception, match="no_such_thing"):
        launch(kernel, (1,), x, x, 7, constant=1, block=8)
