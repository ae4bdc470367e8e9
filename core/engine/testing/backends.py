"""Backends that compile nothing, for tests of what calls a backend."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel
from torch import fx

from engine.strategies import Backend


class CountingBackend(Backend):
    """Runs graphs as they are and remembers what it was given.

    Attributes:
        graphs: in the order in which they were compiled.
        inputs: the example inputs of each, and whether its sizes were dynamic.
    """

    NAME = "counting"
    SUMMARY = "run graphs as they are and count them"

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self.graphs: list[fx.GraphModule] = []
        self.inputs: list[tuple[tuple[Any, ...], bool]] = []

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Return the graph's own forward."""
        self.graphs.append(graph)
        self.inputs.append((tuple(example_inputs), dynamic))
        return graph.forward


class KeepingBackend(CountingBackend):
    """Also keeps artifacts: a word, which says that the graph was seen before.

    Attributes:
        loaded: how many artifacts it restored.
    """

    NAME = "keeping"
    SUMMARY = "run graphs as they are and keep a word of each"
    CACHEABLE = True

    loaded = 0

    def save(self, compiled: Callable[..., Any]) -> bytes | None:
        """Return the word."""
        return b"whole"

    def load(
        self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Take the word for the deed.

        Raises:
            ValueError: it is another word.
        """
        if artifact != b"whole":
            raise ValueError("not mine")
        self.loaded += 1
        return graph.forward


class StoringBackend(CountingBackend):
    """Keeps the graphs themselves: what it restores runs what was stored, right or wrong.

    Attributes:
        loaded: how many artifacts it restored.
    """

    NAME = "storing"
    SUMMARY = "run graphs as they are and keep each as it was"
    CACHEABLE = True

    loaded = 0

    def save(self, compiled: Callable[..., Any]) -> bytes | None:
        """Return the graph's code and constants."""
        graph: fx.GraphModule = compiled.__self__  # type: ignore[attr-defined]  # it is a method
        copied = fx.Graph()
        copied.output(copied.graph_copy(graph.graph, {}))
        # What nodes know of their values can't be stored, and isn't needed to run them.
        for node in copied.nodes:
            node.meta.clear()
        stored = fx.GraphModule(graph, copied)
        stored.meta.clear()
        return pickle.dumps(stored)

    def load(
        self, artifact: bytes, graph: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Return the stored graph's forward.

        Raises:
            ValueError: there is none in the artifact.
        """
        try:
            stored = pickle.loads(artifact)  # noqa: S301 - written by the test itself
        except (pickle.UnpicklingError, EOFError) as error:
            raise ValueError(f"no graph: {error}") from error
        if not isinstance(stored, fx.GraphModule):
            raise ValueError(f"it holds a {type(stored).__name__}")
        self.loaded += 1
        return stored.forward
