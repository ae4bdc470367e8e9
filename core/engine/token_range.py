"""Which numbers of tokens a compiled graph serves, and the shapes to compile it with.

A trace's shapes belong to Dynamo and to one range. To compile a graph for another range, or for
one exact size, its shapes are worked out anew in an environment of their own, so that what one
compilation assumes can't reach another, and can be checked afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
)
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from engine.errors import ConfigError

_HINT = 13
"""Tokens that a compiler takes as typical when it chooses tiles: a small decode batch, and hardly
ever another size of a model (with eight, torch 2.11 took tokens and eight heads for equal)."""
_FEWEST = 2
"""A range spans more numbers than this; fewer are compiled one by one."""


@dataclass(frozen=True, order=True)
class TokenRange:
    """The numbers of tokens from `low` to `high`, both included."""

    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether it is a single number: every size is then a constant."""
        return self.low == self.high

    def __contains__(self, num_tokens: int) -> bool:
        return self.low <= num_tokens <= self.high

    def __str__(self) -> str:
        return str(self.low) if self.exact else f"{self.low}-{self.high}"


class Shapes:
    """A shape environment in which the number of tokens lies in one range.

    Attributes:
        tokens: the range.
        mode: fake tensors of this mode have the sizes that follow.
        num_tokens: the symbolic int, or the number itself when the range is a single one.
    """

    def __init__(self, tokens: TokenRange) -> None:
        self.tokens = tokens
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.num_tokens: Any = tokens.low if tokens.exact else self._symbol()

    def _symbol(self) -> Any:
        low, high = self.tokens.low, self.tokens.high
        example = self.mode.from_tensor(
            torch.empty(min(max(_HINT, low), high), device="meta"),
            symbolic_context=StatelessSymbolicContext(
                dynamic_sizes=[DimDynamic.DYNAMIC],
                constraint_sizes=[
                    StrictMinMaxConstraint(warn_only=False, vr=ValueRanges(max(2, low), high))
                ],
            ),
            source=ConstantSource("num_tokens"),
        )
        return example.size(0)

    def inputs(self, graph: fx.GraphModule) -> tuple[Any, ...]:
        """Return example values for the graph's placeholders: fake tensors, symbolic ints."""
        with self.mode, torch.inference_mode(mode=False):
            return tuple(
                self._renew(node.meta["example_value"])
                for node in graph.graph.find_nodes(op="placeholder")
            )

    def _renew(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(
            [self._size(size) for size in value.shape],
            [self._size(stride) for stride in value.stride()],
            dtype=value.dtype,
            device=value.device,
        )

    def _size(self, size: Any) -> Any:
        """Translate a size of the trace: every free symbol there is the number of tokens."""
        if not isinstance(size, torch.SymInt):
            return size
        expression = size.node.expr
        if self.tokens.exact:
            known = sympy.Integer(self.tokens.low)
            return int(expression.xreplace(dict.fromkeys(expression.free_symbols, known)))
        own = self.num_tokens.node.expr
        renewed = expression.xreplace(dict.fromkeys(expression.free_symbols, own))
        if renewed == own:
            return self.num_tokens
        hint = int(renewed.xreplace({own: sympy.Integer(self.num_tokens.node.hint)}))
        return self.env.create_symintnode(renewed, hint=hint)

    def assumptions(self) -> list[tuple[str, int]]:
        """Return what a compilation assumed that some number of tokens breaks.

        A single token is left out: compilers ask whether a size is 1 to lay tensors out, and what
        fits every larger size fits 1 as well, because a stride of a size of 1 is never used.
        """
        if self.tokens.exact:
            return []
        served = TokenRange(max(2, self.tokens.low), self.tokens.high)
        return broken_assumptions((guard.expr for guard in self.env.guards), served)


def broken_assumptions(guards: Iterable[Any], tokens: TokenRange) -> list[tuple[str, int]]:
    """Return the guards that don't hold for every number of tokens of a range.

    Args:
        guards: boolean sympy expressions; every free symbol is the number of tokens.
        tokens: the range.

    Returns:
        Each broken guard, with `num_tokens` for the symbol, and the least number that breaks it.
    """
    symbol = sympy.Symbol("num_tokens", positive=True, integer=True)
    bounds = {symbol: ValueRanges(tokens.low, tokens.high)}
    broken = []
    for guard in guards:
        expression = guard.xreplace(dict.fromkeys(guard.free_symbols, symbol))
        if expression == sympy.true or bound_sympy(expression, bounds).lower == sympy.true:
            continue
        for number in range(tokens.low, tokens.high + 1):
            if expression.xreplace({symbol: sympy.Integer(number)}) != sympy.true:
                broken.append((str(expression), number))
                break
    return broken


def plan_ranges(
    max_num_tokens: int, ends: Sequence[int] = (), sizes: Sequence[int] = ()
) -> list[TokenRange]:
    """Return the ranges to compile for, so that every number of tokens is in one of them.

    Args:
        max_num_tokens: the largest number of tokens.
        ends: upper ends of ranges; the last range ends at `max_num_tokens` whatever they are.
        sizes: single numbers that get a range of their own and are taken first.

    Returns:
        Single numbers first, then ranges, each in ascending order.

    Raises:
        ConfigError: a number lies outside 1 to `max_num_tokens`; names the setting.
    """
    for setting, numbers in (("compile_ranges", ends), ("compile_sizes", sizes)):
        if wrong := [number for number in numbers if not 1 <= number <= max_num_tokens]:
            raise ConfigError(
                f"compilation_config.{setting}: {wrong[0]} is not within 1 and "
                f"{max_num_tokens}, the largest number of tokens of a step "
                "(max_num_batched_tokens); leave it out or change that"
            )
    exact, ranges, low = set(sizes), [], 1
    for high in sorted({*ends, max_num_tokens}):
        # PyTorch's symbols begin at 2 and are constants when that is all they can be.
        if high - low < _FEWEST:
            exact.update(range(low, high + 1))
        else:
            ranges.append(TokenRange(low, high))
        low = high + 1
    return [TokenRange(size, size) for size in sorted(exact)] + ranges
