"""Where a start leaves what people want to read: graphs, generated code, plans (`--debug-dump`).

The core writes what passes through its own hands: what `GraphCompiler` is given, what each pass
did, what a backend generated, what is captured. A plugin that has more to show, or that goes
another way, writes to the same place through its job's `dump`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import fx


class GraphDump:
    """Takes texts under names; this one, which is in force by default, drops them.

    Writing changes nothing else of a start: no key, no artifact, no token. It never fails one.

    Attributes:
        active: whether anything is kept; look at it before making a text that costs time.
    """

    active: bool = False

    def inside(self, folder: str) -> Self:
        """Return a dump that writes into a folder of this one."""
        del folder
        return self

    def text(self, name: str, text: str, about: str = "") -> None:
        """Keep a text.

        Args:
            name: of the file, with its ending; a `/` makes folders, and a name that was used
                before is replaced.
            text: the content.
            about: one line for the index.
        """

    def missing(self, name: str, reason: str) -> None:
        """Say in the index why something that one would look for isn't there."""

    def graph(self, name: str, graph: fx.GraphModule, about: str = "") -> None:
        """Keep a graph as readable code, with the shapes of its nodes where they are known.

        Args:
            name: of the file, without an ending.
            graph: left as it is.
            about: one line for the index.
        """
        if self.active:
            self.text(f"{name}.py", readable(graph), about)


def readable(graph: fx.GraphModule) -> str:
    """Return a graph as code, as `print_readable` writes it."""
    try:
        return graph.print_readable(print_output=False)
    # Metadata of a stranger's pass may be anything; what can't be shown must not end a start.
    except Exception as error:  # noqa: BLE001 - it is told in the text's first line
        return f"# without shapes: {type(error).__name__}: {error}\n{graph.graph}\n"
