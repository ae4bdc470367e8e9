"""One recorded operator call: nothing is computed when it is recorded, everything at replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from engine.ops import is_recordable, unrecordable
from engine.runtime.simulated_graphs_memory import Address, Pool

_RESHAPES_IN_PLACE = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})


@dataclass(frozen=True)
class RecordedCall:
    """An operator, the addresses that it reads and the addresses that it writes."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[torch.Tensor, ...]
    """Aliases of what was returned when it was recorded; empty for operators that only mutate."""

    def replay(self) -> None:
        """Run the operator on what its inputs hold now.

        Raises:
            RuntimeError: an input is gone, or a result has another shape than when recorded.
        """
        args, kwargs = tree_map(_resolve, (self.args, self.kwargs))
        result = self.func(*args, **kwargs)
        for kept, fresh in zip(self.outputs, _fresh(self.func, result), strict=True):
            if kept.shape != fresh.shape:
                raise RuntimeError(
                    f"operator {self.func} was recorded with a result of shape "
                    f"{list(kept.shape)} and now gives {list(fresh.shape)}"
                )
            kept.copy_(fresh)


def _resolve(value: Any) -> Any:
    return value.tensor() if isinstance(value, Address) else value


def record_call(
    pool: Pool, fakes: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, RecordedCall | None]:
    """Record an operator instead of running it.

    Returns:
        What the operator returns: views are real, everything else is poisoned memory of the pool
        (or the very argument that it mutates). And the call, None for what launches nothing.

    Raises:
        RuntimeError: the operator can't be in a graph; names it.
    """
    if not isinstance(func, OpOverload):
        raise RuntimeError(f"{func} can't be recorded by the simulated graph device")
    name = func.name().partition(".")[0]
    if not is_recordable(func):
        raise RuntimeError(unrecordable(func))
    if name in _RESHAPES_IN_PLACE:
        raise RuntimeError(f"operator {name} gives a tensor other memory, which a graph can't")
    if func.is_view or torch.Tag.inplace_view in func.tags:
        return func(*args, **kwargs), None
    shapes = _shapes_of(fakes, func, args, kwargs)
    made: list[torch.Tensor] = []

    def make(fake: Any) -> Any:
        if not isinstance(fake, torch.Tensor):
            return fake
        made.append(pool.allocate(fake.size(), fake.stride(), fake.dtype))
        return made[-1]

    written = _written(func, args, kwargs)
    returns = _schema(func).returns
    if any(r.alias_info is not None for r in returns):
        results = shapes if len(returns) > 1 else (shapes,)
        given = tuple(
            make(fake) if r.alias_info is None else written[min(r.alias_info.before_set)]
            for r, fake in zip(returns, results, strict=True)
        )
        result: Any = given if len(returns) > 1 else given[0]
    else:
        result = tree_map(make, shapes)

    def address(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return pool.alias(value) if pool.owns(value) else Address(value, str(func))

    where = tree_map(address, (args, kwargs))
    outputs = tuple(pool.alias(tensor) for tensor in made)
    return result, RecordedCall(func, where[0], where[1], outputs)


def _shapes_of(
    fakes: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(
            value.size(), value.stride(), dtype=value.dtype, device=value.device
        )

    with fakes:
        inputs = tree_map(fake, (args, kwargs))
        before = [t.shape for t in _written(func, *inputs).values() if isinstance(t, torch.Tensor)]
        try:
            result = func(*inputs[0], **inputs[1])
        except (RuntimeError, NotImplementedError) as error:
            raise RuntimeError(
                f"operator {func} can't be recorded: what it returns doesn't follow from shapes "
                f"({type(error).__name__}: {error})"
            ) from None
        after = [t.shape for t in _written(func, *inputs).values() if isinstance(t, torch.Tensor)]
    if before != after:
        raise RuntimeError(f"operator {func} resizes its output, which moves it; give it the shape")
    return result


def _schema(func: Any) -> Any:
    return func._schema  # noqa: SLF001 - the only way to an operator's signature


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that an operator writes, by the schema's name of their memory."""
    written = {}
    for index, argument in enumerate(_schema(func).arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        for name in argument.alias_info.before_set:
            written[name] = value
    return written


def _fresh(func: Any, result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result that the operator made."""
    returns = _schema(func).returns
    results = result if len(returns) > 1 else (result,)
    found: list[torch.Tensor] = []
    for r, value in zip(returns, results, strict=len(returns) > 0):
        if r.alias_info is None:
            tensors = value if isinstance(value, list | tuple) else [value]
            found += [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return found
