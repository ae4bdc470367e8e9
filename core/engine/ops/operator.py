"""Operators that compute one thing at once: a reference in torch, a kernel of the device.

To a compiler such an operator is opaque: it is worth its place only where its kernel beats what
the compiler makes of the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from engine.ops.recordable import declare_recordable


class Operator(Protocol):
    """What `operator` makes of a reference."""

    overload: OpOverload
    """What the dispatcher knows; the target of an FX node."""
    reference: Callable[..., Any]
    """The definition in torch, as it was decorated."""

    def __call__(self, *args: Any) -> Any:
        """Go through the dispatcher."""
        ...


class _Operator:
    def __init__(self, overload: OpOverload, reference: Callable[..., Any]) -> None:
        self.overload, self.reference = overload, reference
        self.__doc__ = reference.__doc__

    def __call__(self, *args: Any) -> Any:
        return self.overload(*args)


def operator(
    name: str,
    *,
    fake: Callable[..., Any],
    cuda: Callable[[], Callable[..., Any]] | None = None,
    cpu: Callable[[], Callable[..., Any]] | None = None,
) -> Callable[[Callable[..., Any]], Operator]:
    """Define an operator that depends on its arguments alone and returns fresh tensors.

    It may stand inside a recorded graph: its launches must depend on shapes only.

    Args:
        name: `namespace::name`.
        fake: makes the results' shapes and strides without computing.
        cuda: loads the implementation for CUDA when it is first called; where it raises
            ImportError (no Triton), and on other devices, the reference runs.
        cpu: likewise for the CPU.

    Returns:
        A decorator for the reference, whose annotations give the schema.
    """

    def decorate(reference: Callable[..., Any]) -> Operator:
        namespace, _, plain = name.partition("::")
        # Defined directly: the wrappers of `torch.library.custom_op` cost five times as much for
        # each call as the dispatcher itself.
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(plain + torch.library.infer_schema(reference, mutates_args=()))
        library.impl(plain, reference, "CompositeExplicitAutograd")
        for device, load in (("CUDA", cuda), ("CPU", cpu)):
            if load is not None:
                library.impl(plain, _Late(load, reference), device)
        torch.library.register_fake(name, fake, lib=library)
        _libraries.append(library)
        declare_recordable(name)
        return _Operator(getattr(getattr(torch.ops, namespace), plain).default, reference)

    return decorate


class _Late:
    """Loads an implementation at its first call, so that importing an operator is cheap."""

    def __init__(
        self, load: Callable[[], Callable[..., Any]], otherwise: Callable[..., Any]
    ) -> None:
        self._load, self._otherwise = load, otherwise
        self._call: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self._call is None:
            try:
                self._call = self._load()
            except ImportError:
                self._call = self._otherwise
        return self._call(*args)


_libraries: list[torch.library.Library] = []
"""Kept for the life of the process: an operator goes when its library does."""
