"""Which operators a graph is cut at, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from torch import fx
from torch._ops import OpOverloadPacket

from engine.errors import ConfigError
from engine.ops import known_break_ops


def break_op_name(node: fx.Node) -> str:
    """Return `namespace::name` of the operator that a node calls; empty for anything else."""
    if node.op != "call_function":
        return ""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "_qualified_op_name", ""))


def writes(graph: fx.GraphModule) -> bool:
    """Say whether a graph calls an operator, as such, that writes to its arguments."""
    for node in graph.graph.nodes:
        packet = getattr(node.target, "overloadpacket", node.target)
        if node.op == "call_function" and isinstance(packet, OpOverloadPacket):
            overloads = (getattr(packet, name) for name in packet.overloads())
            if any(overload._schema.is_mutable for overload in overloads):  # noqa: SLF001 - the schema has no public name
                return True
    return False


def check_break_ops(names: Iterable[str]) -> None:
    """Check that every name is one of a break op; any subset of the known ones is fine.

    Raises:
        ConfigError: a name is unknown; lists the known ones.
    """
    known = known_break_ops()
    for name in sorted(names):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"compilation_config.splitting_ops: {name!r} is no operator that a graph can be "
                f"split at.{hint} Known: {', '.join(known) or 'none'}."
            )
