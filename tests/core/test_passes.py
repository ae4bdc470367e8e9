"""The order of FX passes, and what happens when one fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from engine.errors import BrokenPluginError, ConfigError
from engine.passes import apply_passes, load_passes, order_passes
from engine.registry import Registry
from engine.strategies import Pass
from engine.testing.distributions import PluginMaker


def made(
    name: str, run: Callable[[fx.GraphModule], int] | None = None, **declared: Any
) -> type[Pass]:
    def do(self: Pass, graph: fx.GraphModule) -> int:
        return run(graph) if run is not None else 0

    members = {"NAME": name, "SUMMARY": name, "ON_BY_DEFAULT": True, "run": do, **declared}
    return type(f"Pass_{name}", (Pass,), members)


def names(passes: list[type[Pass]], *switches: str) -> list[str]:
    random.shuffle(passes)
    return [one.NAME for one in order_passes(passes, switches)]


def test_passes_run_by_stage_then_by_name() -> None:
    passes = [made("b"), made("a"), made("z", STAGE="graph"), made("c", STAGE="piece")]
    assert names(passes) == ["a", "b", "z", "c"]


def test_what_a_pass_asks_for_goes_before_the_name() -> None:
    passes = [made("a", AFTER=("c",)), made("b", BEFORE=("c",)), made("c"), made("d")]
    assert names(passes) == ["b", "c", "a", "d"]


@given(st.permutations(range(6)), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_every_order_that_is_possible_is_found(
    rank: list[int], pairs: set[tuple[int, int]]
) -> None:
    wanted = {(a, b) for a, b in pairs if rank[a] < rank[b]}
    passes = [made(f"p{n}", BEFORE=tuple(f"p{b}" for a, b in wanted if a == n)) for n in range(6)]
    order = names(passes)
    assert sorted(order) == [f"p{n}" for n in range(6)]
    assert all(order.index(f"p{a}") < order.index(f"p{b}") for a, b in wanted)


def test_switches_turn_passes_on_and_off_and_change_no_order() -> None:
    passes = [made("a"), made("b", ON_BY_DEFAULT=False), made("c", BEFORE=("a",))]
    assert names(passes) == ["c", "a"]
    assert names(passes, "+b") == ["b", "c", "a"]
    assert names(passes, "-a", "+B") == ["b", "c"]
    assert names(passes, "-a", "-a") == ["c"]


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (("a",), r"'a' is no switch; write \+a"),
        (("+abb",), r"'\+abb' names no pass. Did you mean \+abc\? Installed: a, abc"),
        (("+a", "-a"), r"both \+a and -a"),
        (("",), "no switch"),
    ],
)
def test_a_wrong_switch_is_an_error_that_says_what_to_write(
    switches: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        order_passes([made("a"), made("abc")], switches)


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ([made("a", BEFORE=("b",)), made("b", BEFORE=("a",))], "each want to run before the next"),
        ([made("a", AFTER=("fusion",)), made("fusions")], "'fusion', which.*mean fusions"),
        ([made("a", STAGE="later")], "the stages are graph, piece"),
        ([made("a", AFTER=("b",)), made("b", STAGE="piece")], "later stage 'piece'"),
    ],
    ids=["circle", "misspelt", "stage", "backwards"],
)
def test_passes_that_cannot_be_ordered_are_an_error(passes: list[type[Pass]], message: str) -> None:
    with pytest.raises(BrokenPluginError, match=message):
        order_passes(passes, ())


def test_a_pass_may_ask_for_its_place_among_passes_that_are_not_installed() -> None:
    passes = [made("b", AFTER=("gone",), BEFORE=("a", "absent")), made("a")]
    assert names(passes) == ["b", "a"]


def doubling() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: x + x)


def test_the_passes_of_a_stage_change_the_graph_and_count() -> None:
    def triple(graph: fx.GraphModule) -> int:
        (add,) = graph.graph.find_nodes(op="call_function", target=torch.add) or [
            node for node in graph.graph.nodes if node.op == "call_function"
        ]
        with graph.graph.inserting_after(add):
            more = graph.graph.call_function(torch.add, (add, add.args[0]))
        add.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)
        return 1

    graph = doubling()
    passes = [made("triple", triple)(), made("other", STAGE="piece")()]
    assert apply_passes(graph, passes, "graph") == {"triple": 1}
    assert graph(torch.ones(1)).item() == 3


def test_a_failing_pass_is_named_with_the_switch_that_turns_it_off() -> None:
    def fail(graph: fx.GraphModule) -> int:
        raise KeyError("no such node")

    with pytest.raises(BrokenPluginError, match=r"pass bad failed: KeyError.*--passes=-bad"):
        apply_passes(doubling(), [made("bad", fail)()], "graph")


def test_an_ill_formed_graph_is_blamed_on_the_pass_that_left_it() -> None:
    def ruin(graph: fx.GraphModule) -> int:
        (source,) = graph.graph.find_nodes(op="placeholder")
        graph.graph.output_node().prepend(source)
        return 1

    with pytest.raises(BrokenPluginError, match="pass ruin failed"):
        apply_passes(doubling(), [made("ruin", ruin)()], "graph")


def test_a_pass_may_be_on_by_default_on_some_devices_only() -> None:
    passes = [made("a", ON_BY_DEFAULT=frozenset({"cuda", "npu"})), made("b")]
    for device, expected in (("cuda", ["a", "b"]), ("cpu", ["b"]), ("npu", ["a", "b"])):
        assert [one.NAME for one in order_passes(passes, (), device)] == expected
    assert [one.NAME for one in order_passes(passes, ["-a", "-b"], "cuda")] == []
    assert [one.NAME for one in order_passes(passes, ["+a"], "cpu")] == ["a", "b"]


def test_a_broken_pass_that_nobody_named_is_left_out_with_a_line(
    make_plugin: PluginMaker, caplog: pytest.LogCaptureFixture
) -> None:
    make_plugin("broken", kind="passes", source="raise ImportError('no such thing')")
    registry = Registry()
    others = set(registry.names("passes")) - {"broken"}
    switches = [f"+{name}" for name in others]
    assert {one.NAME for one in load_passes(registry, switches, "cpu")} == others
    assert "no such thing" in caplog.text
    for switch in ("+broken", "-BROKEN"):
        with pytest.raises(BrokenPluginError, match="no such thing"):
            load_passes(registry, [switch], "cpu")


def test_the_installed_passes_can_be_ordered() -> None:
    registry = Registry()
    everything = [f"+{name}" for name in registry.names("passes")]
    assert {one.NAME for one in load_passes(registry, everything, "cpu")} == set(
        registry.names("passes")
    )
