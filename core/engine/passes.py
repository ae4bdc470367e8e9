"""Which FX passes run, in which order, and how they are run.

The order is a pure function of what the passes declare and what the user switched, so that it can
be shown without compiling anything.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Protocol

from engine.dump import GraphDump, readable
from engine.errors import BrokenPluginError, ConfigError, PluginError

if TYPE_CHECKING:
    from torch import fx

    from engine.strategies import Pass

logger = logging.getLogger(__name__)

STAGES = ("graph", "piece")
"""`graph`: on the whole traced graph, before it is cut or compiled. `piece`: on what one backend
call compiles, for one range of tokens, whose shapes the nodes then have."""


class PassCatalog(Protocol):
    """The installed passes (`Registry` is one)."""

    def names(self, kind: str) -> list[str]:
        """Return the installed names of a kind."""
        ...

    def load(self, kind: str, name: str) -> Any:
        """Return the plugin class of a name, or raise a PluginError."""
        ...


def load_passes(catalog: PassCatalog, switches: Sequence[str], device: str) -> tuple[Pass, ...]:
    """Return an instance of each pass that is on, in the order in which they run.

    Args:
        catalog: the installed passes.
        switches: `+name` and `-name`, as the user gave them.
        device: the type of the device on which a pass may be on by default; empty for none.

    Raises:
        ConfigError: a switch names no pass, or isn't one.
        PluginError: a pass that a switch names can't be loaded, or the passes can't be ordered.
    """
    named = {_name(switch) for switch in switches}
    installed: list[type[Pass]] = []
    for name in catalog.names("passes"):
        try:
            installed.append(catalog.load("passes", name))
        except PluginError as error:
            if name in named:
                raise
            # Nobody asked for it, so it must not keep a model from being served.
            logger.warning("left out: %s", error)
    return tuple(one() for one in order_passes(installed, switches, device))


def _name(switch: str) -> str:
    return switch[1:].lower().replace("-", "_")


def order_passes(
    installed: Iterable[type[Pass]], switches: Sequence[str], device: str = ""
) -> list[type[Pass]]:
    """Return the passes that are on: by stage, then as they ask for, then by name.

    Args:
        installed: the passes to choose from.
        switches: `+name` and `-name`.
        device: the type of the device; without one, what is on for some devices only is off.

    Raises:
        ConfigError: a switch names no pass, or isn't one.
        BrokenPluginError: a pass names an unknown stage or pass, or they form a circle.
    """
    by_name = {one.NAME: one for one in installed}
    on = _switched(by_name, switches, device)
    order = _sorted(by_name)
    return sorted((by_name[name] for name in on), key=lambda one: order.index(one.NAME))


def _switched(by_name: dict[str, type[Pass]], switches: Sequence[str], device: str) -> set[str]:
    on = {name for name, one in by_name.items() if _is_on(one.ON_BY_DEFAULT, device)}
    seen: dict[str, str] = {}
    for switch in switches:
        sign, name = switch[:1], _name(switch)
        if sign not in ("+", "-"):
            raise ConfigError(
                f"compilation_config.passes: {switch!r} is no switch; write +{switch} to turn "
                f"the pass on or -{switch} to turn it off"
            )
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            hint = f" Did you mean {sign}{near[0]}?" if near else ""
            raise ConfigError(
                f"compilation_config.passes: {switch!r} names no pass.{hint} Installed: "
                f"{', '.join(sorted(by_name)) or 'none'}."
            )
        if seen.setdefault(name, sign) != sign:
            raise ConfigError(f"compilation_config.passes: both +{name} and -{name} are given")
        on = on | {name} if sign == "+" else on - {name}
    return on


def _is_on(default: bool | frozenset[str], device: str) -> bool:
    return default if isinstance(default, bool) else device in default


def _sorted(by_name: dict[str, type[Pass]]) -> list[str]:
    """Return all names in order; also what is off takes part, so that switching changes no order.

    Within what the passes ask for, the order is by stage and name.
    """
    before: dict[str, set[str]] = {name: set() for name in by_name}
    for name, one in by_name.items():
        if one.STAGE not in STAGES:
            raise BrokenPluginError(
                f"pass {name}: STAGE is {one.STAGE!r}; the stages are {', '.join(STAGES)}"
            )
        for other in (*one.BEFORE, *one.AFTER):
            near = difflib.get_close_matches(other, by_name, n=1, cutoff=0.85)
            if other not in by_name and near:
                raise BrokenPluginError(
                    f"pass {name} wants to run before or after {other!r}, which isn't installed; "
                    f"did its author mean {near[0]}?"
                )
        # A pass that isn't there needs no place.
        before[name].update(other for other in one.AFTER if other in by_name)
        for other in one.BEFORE:
            if other in by_name:
                before[other].add(name)
    for name, one in by_name.items():
        for other in before[name]:
            if STAGES.index(by_name[other].STAGE) > STAGES.index(one.STAGE):
                raise BrokenPluginError(
                    f"pass {other} can't run before {name}: it belongs to the later stage "
                    f"{by_name[other].STAGE!r}"
                )
    return _topological(before, lambda name: (STAGES.index(by_name[name].STAGE), name))


def _topological(before: dict[str, set[str]], rank: Any) -> list[str]:
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " → ".join(error.args[1])
        raise BrokenPluginError(f"the passes {circle} each want to run before the next") from None
    order: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=rank)
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return order


def apply_passes(
    graph: fx.GraphModule, passes: Iterable[Pass], stage: str, dump: GraphDump | None = None
) -> dict[str, int]:
    """Run the passes of one stage on a graph, in place.

    Args:
        graph: what to change.
        passes: in order; those of other stages are left out.
        stage: one of `STAGES`.
        dump: where the graph before and after each pass that fired is written.

    Returns:
        How many times each pass fired.

    Raises:
        BrokenPluginError: a pass failed or left an ill-formed graph; names it.
    """
    fired: dict[str, int] = {}
    number = 0
    for one in passes:
        if stage != one.STAGE:
            continue
        before = readable(graph) if dump is not None and dump.active else ""
        try:
            fired[one.NAME] = one.run(graph)
            graph.graph.lint()
        # A stranger's pass may fail in any way; the user must learn which one it was.
        except Exception as error:
            raise BrokenPluginError(
                f"pass {one.NAME} failed: {type(error).__name__}: {error}; turn it off with "
                f"--passes=-{one.NAME}"
            ) from error
        graph.recompile()
        if dump is not None and before and fired[one.NAME]:
            number += 1
            name, times = f"{number:02}-{one.NAME}", fired[one.NAME]
            dump.text(f"{name}-before.py", before, f"before pass {one.NAME}")
            dump.graph(f"{name}-after", graph, f"after pass {one.NAME}, which fired {times} times")
    return fired
