"""Operators that may stand inside a recorded graph, and a watch for those that nobody vouches for.

A graph freezes what an operator's host code decides: addresses, launch geometry, numbers read
back from the device. PyTorch's own operators are known to decide from shapes alone. Of any other
operator nobody knows, until its author says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from engine.ops.break_ops import is_break_op

_NAMESPACES = frozenset({"aten", "prim", "prims", "inductor"})
_declared: set[str] = set()


def declare_recordable(*names: str) -> None:
    """Vouch for operators: their launches depend on shapes alone, and they never wait.

    Args:
        names: `namespace::name` each. Registering the same name again does nothing.
    """
    _declared.update(names)


def is_recordable(op: OpOverload) -> bool:
    """Say whether an operator may be recorded; break ops decide for themselves and count as known.

    One that waits for the device, or whose result has a shape that depends on values, may not.
    """
    if needs_values(op):
        return False
    name = op.name().partition(".")[0]
    return op.namespace in _NAMESPACES or name in _declared or is_break_op(op)


def needs_values(op: OpOverload) -> bool:
    """Say whether an operator is known to look at values on the host, so no graph can hold it."""
    name = op.name().partition(".")[0]
    return bool(_NEEDS_VALUES.intersection(op.tags)) and name not in _SAFE_WITH_INDICES


_NEEDS_VALUES = frozenset(
    {
        torch.Tag.cudagraph_unsafe,
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
    }
)

_SAFE_WITH_INDICES = frozenset({"aten::index", "aten::repeat_interleave"})
"""Marked for what they do with a mask; with indices (or a given size) they are fine."""


class OperatorWatch(TorchDispatchMode):
    """While entered, hands every operator that isn't recordable to `on_unknown`.

    What a break op does inside is its own business and isn't watched. Not for callables that check
    Dynamo guards: these fail while a dispatch mode is in force.

    Args:
        on_unknown: `(operator, args, kwargs) -> result`; called instead of the operator.
    """

    supports_higher_order_operators = True

    def __init__(self, on_unknown: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._on_unknown = on_unknown

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Receive one operator."""
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and not is_recordable(func):
            return self._on_unknown(func, args, kwargs)
        return func(*args, **kwargs)


def unrecordable(func: Any) -> str:
    """Say why an operator may not be recorded, and what to do."""
    name = func.name() if hasattr(func, "name") else str(func)
    if isinstance(func, OpOverload) and needs_values(func):
        return (
            f"operator {name} waits for the device or makes a shape from values, which a recorded "
            "graph can't; keep it out of the model's forward pass"
        )
    return (
        f"operator {name} is not known to be safe inside a recorded graph; define it with "
        "engine.ops.break_op, or vouch for it with engine.ops.declare_recordable"
    )
