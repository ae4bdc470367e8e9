"""Operators at which a piecewise graph must break.

A break op depends on more than its tensor arguments (step metadata, host decisions), so it may
not be frozen into a graph segment. It is an ordinary custom operator that writes into buffers
its caller provides, so that what surrounds it keeps fixed addresses. When a recorder is in force
the operator hands itself over to it instead of running inside the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from engine.forward_context import active

_TAG = "engine_break_op"


def break_op(
    name: str, *, mutates_args: Iterable[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Define a custom operator that graphs break at.

    Args:
        name: `namespace::name`.
        mutates_args: the parameters that it writes; it must return nothing.

    Returns:
        A decorator for the implementation, whose annotations give the schema. The decorated
        function may be called directly; it goes through the dispatcher.
    """
    written = tuple(mutates_args)

    def decorate(implementation: Callable[..., None]) -> Callable[..., None]:
        @wraps(implementation)
        def enter(*args: Any, **kwargs: Any) -> None:
            context = active()
            if context is not None and (recorder := context.recorder) is not None:
                recorder.break_at(name, implementation, args)
            else:
                implementation(*args, **kwargs)

        namespace, _, plain = name.partition("::")
        # Defined directly rather than through `torch.library.custom_op`, whose Python wrappers
        # cost five times as much for each call as the dispatcher itself.
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(plain + torch.library.infer_schema(implementation, mutates_args=written))
        library.impl(plain, enter, "CompositeExplicitAutograd")
        torch.library.register_fake(name, lambda *_args, **_kwargs: None, lib=library)
        _libraries.append(library)
        packet = getattr(getattr(torch.ops, namespace), plain)
        setattr(packet, _TAG, True)
        _defined.append(name)

        @wraps(implementation)
        def call(*args: Any, **kwargs: Any) -> None:
            packet(*args, **kwargs)

        return call

    return decorate


_defined: list[str] = []
_libraries: list[torch.library.Library] = []
"""Kept for the life of the process: an operator goes when its library does."""


def known_break_ops() -> tuple[str, ...]:
    """Return the names of all break ops defined so far, sorted."""
    return tuple(sorted(_defined))


def is_break_op(target: Any) -> bool:
    """Say whether an FX node's target (an operator overload or packet) is a break op."""
    packet = getattr(target, "overloadpacket", target)
    return bool(getattr(packet, _TAG, False))


def written_arguments(name: str, count: int) -> tuple[bool, ...]:
    """Say of each of the first `count` arguments of an operator whether it is written."""
    namespace, _, plain = name.partition("::")
    schema = getattr(getattr(torch.ops, namespace), plain).default._schema  # noqa: SLF001 - no public way
    infos = [argument.alias_info for argument in schema.arguments[:count]]
    return tuple(info is not None and info.is_write for info in infos)
