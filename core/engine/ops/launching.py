"""Launches of Triton kernels, and their compilation side by side before they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch

_MOST_THREADS = 8


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a Triton kernel; inside `compiling_ahead`, only have it compiled.

    Args:
        kernel: what `triton.jit` made.
        grid: programs in each direction.
        arguments: of the kernel, by position.
        options: constants of the kernel and options of the launch.
    """
    ahead = _ahead.get()
    if ahead is None:
        kernel[grid](*arguments, **options)
    else:
        ahead.ask(kernel, grid, arguments, options)


@contextmanager
def compiling_ahead(device: torch.device) -> Iterator[bool]:
    """Compile what `launch` launches inside, side by side, and run none of it.

    A step that is run inside computes nothing of use, but meets every kernel it needs. What
    doesn't compile is left to the launch that needs it.

    Yields:
        Whether launches are held back; if not, as without a GPU or with a Triton that can't (before
        3.4), a step inside is an ordinary one, and better left out.
    """
    mode: Callable[..., Any] | None = None
    if device.type == "cuda" and _ahead.get() is None:
        import triton

        mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None:
        yield False
        return
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        token = _ahead.set(_Ahead())
        try:
            index = torch.cuda.current_device() if device.index is None else device.index
            with mode(_Loading(pool, index), ignore_errors=True):
                yield True
        finally:
            _ahead.reset(token)


class _Ahead:
    """Asks for each different kernel once."""

    def __init__(self) -> None:
        self._asked: set[tuple[object, ...]] = set()

    def ask(
        self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: Any
    ) -> None:
        key = kernel, *map(_kind, arguments), *sorted(options.items())
        if key not in self._asked:
            self._asked.add(key)
            kernel.warmup(*arguments, grid=grid, **options)


def _kind(argument: Any) -> object:
    """Return what Triton compiles differently for; asking once too often only costs time."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return int, argument == 1, argument % 16 == 0
    return type(argument)


class _Loading(Executor):
    """Compiles in threads, and loads there too: each loading builds a launcher with a compiler."""

    def __init__(self, pool: ThreadPoolExecutor, device: int) -> None:
        self._pool, self._device = pool, device

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(self._load, fn, args, kwargs)

    def _load(
        self, compile_kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        with torch.cuda.device(self._device):
            kernel = compile_kernel(*args, **kwargs)
            # The property loads. A kernel that doesn't fit says so when it is launched.
            with suppress(Exception):
                _ = kernel.run
        return kernel


_ahead: ContextVar[_Ahead | None] = ContextVar("kernels_ahead", default=None)
"""Set while kernels are compiled ahead; a context, as operators are called through PyTorch."""
