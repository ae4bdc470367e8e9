"""What an operator needs to know of the step it is running in.

The one piece of global state: a context variable, set for the duration of one forward pass, so
that the model's code (and what a compiler makes of it) doesn't carry step metadata through every
signature. It can't be nested and is always reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.batch import BatchShape

if TYPE_CHECKING:
    import torch

    from engine.attention import AttentionPlugin, AttentionSpec
    from engine.graph_device import Recorder


@dataclass
class ForwardContext:
    """One forward pass.

    Attributes:
        shape: the live shape of the batch.
        attention: the attention implementation in force.
        metadata: what `attention.begin_step` returned; opaque to everyone else.
        specs: what each attention layer asks for, by layer index.
        caches: the KV cache of each attention layer, by layer index.
        recorder: receives break ops while a graph strategy records; None otherwise.
    """

    shape: BatchShape
    attention: AttentionPlugin
    metadata: Any
    specs: Sequence[AttentionSpec]
    caches: Sequence[torch.Tensor]
    recorder: Recorder | None = None


_current: ContextVar[ForwardContext | None] = ContextVar("engine_forward_context", default=None)


def current() -> ForwardContext:
    """Return the context of the running forward pass.

    Raises:
        RuntimeError: no forward pass is running.
    """
    context = _current.get()
    if context is None:
        raise RuntimeError("no forward context: the model must be run by the engine's runner")
    return context


def active() -> ForwardContext | None:
    """Return the context of the running forward pass, or None outside one."""
    return _current.get()


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Set the context for one forward pass.

    Raises:
        RuntimeError: a forward pass is already running in this thread.
    """
    if _current.get() is not None:
        raise RuntimeError("a forward pass is already running")
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
