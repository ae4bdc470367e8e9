"""Ranges of tokens: how they are planned, and what a compiler may assume of one."""

from __future__ import annotations

import pytest
import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from engine.errors import ConfigError
from engine.token_range import Shapes, TokenRange, broken_assumptions, plan_ranges


@given(st.data())
def test_every_number_of_tokens_is_in_a_range_and_sizes_come_first(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 60))
    numbers = st.lists(st.integers(1, most), max_size=5)
    ends, sizes = data.draw(numbers), data.draw(numbers)
    ranges = plan_ranges(most, ends, sizes)
    for number in range(1, most + 1):
        first = next(tokens for tokens in ranges if number in tokens)
        assert first.exact == (number in sizes) or first.exact
        assert number in sizes or not [e for e in ends if first.low <= e < first.high]
    assert all(tokens.exact or tokens.high - tokens.low > 1 for tokens in ranges)
    assert ranges == sorted(ranges, key=lambda tokens: (not tokens.exact, tokens.low))


@pytest.mark.parametrize(
    ("ends", "sizes", "message"),
    [((65,), (), "compile_ranges: 65"), ((), (0,), "compile_sizes: 0"), ((-1,), (), "-1")],
)
def test_numbers_that_no_step_can_have_are_refused(
    ends: tuple[int, ...], sizes: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_ranges(64, ends, sizes)


def test_ranges_print_as_people_write_them() -> None:
    assert [str(TokenRange(8, 8)), str(TokenRange(1, 64))] == ["8", "1-64"]


def graph_of(tokens: Shapes) -> fx.GraphModule:
    graph = fx.symbolic_trace(lambda n, x, w: x * n + w)
    with tokens.mode:
        values = (tokens.num_tokens, torch.empty(tokens.num_tokens * 2, 4), torch.ones(4))
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), values, strict=True):
        node.meta["example_value"] = value
    return graph


def test_sizes_are_translated_from_one_range_to_another() -> None:
    graph = graph_of(Shapes(TokenRange(1, 64)))
    other = Shapes(TokenRange(5, 20))
    count, x, w = other.inputs(graph)
    assert count is other.num_tokens
    assert x.shape[0].node.shape_env is other.env
    assert x.shape[0].node.expr == 2 * count.node.expr
    assert (x.shape[1], x.stride()[1], tuple(w.shape)) == (4, 1, (4,))
    bounds = other.env.var_to_range[count.node.expr]
    assert (int(bounds.lower), int(bounds.upper)) == (5, 20)


def test_for_a_single_number_every_size_is_a_constant() -> None:
    count, x, _ = Shapes(TokenRange(7, 7)).inputs(graph_of(Shapes(TokenRange(1, 64))))
    assert (count, tuple(x.shape)) == (7, (14, 4))
    assert not isinstance(x.shape[0], torch.SymInt)


def test_what_a_compilation_assumes_beyond_its_range_is_found() -> None:
    shapes = Shapes(TokenRange(1, 64))
    assert bool(shapes.num_tokens <= 64)
    assert shapes.assumptions() == []
    assert bool(shapes.num_tokens % 2 == 1)
    ((assumption, number),) = shapes.assumptions()
    assert "num_tokens" in assumption
    assert number == 2


def test_that_a_size_is_not_one_is_no_assumption_worth_the_name() -> None:
    shapes = Shapes(TokenRange(1, 64))
    assert bool(shapes.num_tokens != 1)
    assert shapes.assumptions() == []


def test_guards_are_tried_on_every_number() -> None:
    s, t = sympy.symbols("s t", positive=True, integer=True)
    guards = [s < 65, sympy.Eq(s, t), sympy.Ne(s, 33), s > 3]
    broken = broken_assumptions(guards, TokenRange(2, 64))
    assert broken == [("Ne(num_tokens, 33)", 33), ("num_tokens > 3", 2)]
