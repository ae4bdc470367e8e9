"""A hash of what an FX graph computes: equal for equal layers, whatever their weights are called.

Two graphs with the same hash may share one compiled callable, in this process or through the
artifact store, so everything that a compiler can see is in it: operators, constants, and the
sizes, strides, dtypes and devices of the inputs. What can't be described safely is never equal to
anything.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable
from types import EllipsisType, FunctionType
from typing import Any

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    EllipsisType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
)
_CODE_OF_TORCH = ("torch.", "torch", "math", "operator", "_operator", "builtins")


class UnhashableError(Exception):
    """The graph holds something whose meaning can't be told from its description."""


def graph_hash(graph: fx.GraphModule) -> str | None:
    """Return a hash of the graph's meaning, or None when it can't be told.

    Placeholders need `meta["example_value"]`. Names of nodes and of parameters don't matter;
    symbolic sizes are numbered in the order in which they appear.
    """
    try:
        text = "\n".join(_Describer(graph).lines())
    except UnhashableError:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


class _Describer:
    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph
        self._numbers: dict[fx.Node, int] = {}
        self._symbols: dict[sympy.Symbol, sympy.Symbol] = {}

    def lines(self) -> Iterable[str]:
        for number, node in enumerate(self._graph.graph.nodes):
            self._numbers[node] = number
            yield f"{node.op} {self._node(node)}"

    def _node(self, node: fx.Node) -> str:
        if node.op == "placeholder":
            return self._value(node.meta.get("example_value"))
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op == "call_module":
            raise UnhashableError(node.target)
        target = str(node.target) if node.op == "call_method" else ""
        if node.op == "call_function":
            target = _function(node.target)  # type: ignore[arg-type]  # a callable, for this op
        return f"{target} {self._argument(node.args)} {self._argument(node.kwargs)}"

    def _attribute(self, name: str) -> str:
        value = self._graph
        for part in name.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise UnhashableError(name)
        raw = value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        return f"{self._value(value)} {hashlib.sha256(raw).hexdigest()}"

    def _value(self, value: Any) -> str:
        """Describe an example input: everything but its contents."""
        if isinstance(value, torch.SymInt):
            return f"int {self._size(value)}"
        if not isinstance(value, torch.Tensor):
            return self._argument(value)
        shape = [self._size(size) for size in value.shape]
        stride = [self._size(size) for size in value.stride()]
        return f"tensor {value.dtype} {value.device} {value.layout} {shape} {stride}"

    def _size(self, size: Any) -> str:
        if not isinstance(size, torch.SymInt):
            return str(size)
        expression = size.node.expr
        for symbol in sorted(expression.free_symbols, key=str):
            own = sympy.Symbol(f"n{len(self._symbols)}", positive=True, integer=True)
            self._symbols.setdefault(symbol, own)
        return str(expression.xreplace(self._symbols))

    def _argument(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return f"%{self._numbers[value]}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}({','.join(map(self._argument, value))})"
        if isinstance(value, dict):
            items = (f"{key!r}:{self._argument(item)}" for key, item in value.items())
            return f"dict({','.join(items)})"
        if isinstance(value, slice):
            return f"slice({self._argument([value.start, value.stop, value.step])})"
        if isinstance(value, torch.SymInt):
            return f"int {self._size(value)}"
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        raise UnhashableError(type(value))


def _function(target: Callable[..., Any]) -> str:
    if isinstance(target, HigherOrderOperator):
        # Its meaning lies in subgraphs and in tables outside the graph.
        raise UnhashableError(str(target))
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if name is None:
        raise UnhashableError(repr(target))
    if isinstance(target, FunctionType) and not module.startswith(_CODE_OF_TORCH):
        if target.__closure__:
            raise UnhashableError(name)
        code = target.__code__
        own = hashlib.sha256(code.co_code + repr((code.co_consts, code.co_names)).encode())
        return f"{module}.{name} {own.hexdigest()}"
    return f"{module}.{name}"
