"""Plugins that another system already registers, usable here under their own names.

A family stands for all members of a foreign registry (say, every backend known to PyTorch)
without an entry point for each. It is asked only when no distribution claims a name directly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from engine.plugin import Plugin


class PluginFamily(Plugin):
    """Makes plugin classes by name; never instantiated itself."""

    KIND: ClassVar[str]
    """The kind of the plugins that it makes, as in the entry-point group (`backends`, …)."""

    @classmethod
    @abstractmethod
    def names(cls) -> Sequence[str]:
        """Return the names that it can make now; may import what it stands for."""

    @classmethod
    @abstractmethod
    def make(cls, name: str) -> type[Plugin] | None:
        """Return the plugin class of a normalized name, or None when it has no such member."""
