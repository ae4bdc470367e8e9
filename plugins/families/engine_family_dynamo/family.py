"""Looks names up where torch.compile does: PyTorch's own list and its entry-point group."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from engine.families import PluginFamily
from engine.plugin import Plugin

_GROUP = "torch_dynamo_backends"
_PLAIN_AUTOGRAD = "aot_eager"
"""Of those that PyTorch keeps for debugging, the one that people use by name."""


class DynamoFamily(PluginFamily):
    """PyTorch's backends (`aot_eager`, …) and those of other distributions (`openvino`, …)."""

    NAME = "dynamo"
    SUMMARY = "every backend registered with torch.compile, its entry points included"
    KIND = "backends"

    @classmethod
    def names(cls) -> Sequence[str]:
        """Return the backends that PyTorch lists, those for its own tests left out."""
        from torch._dynamo import list_backends

        return sorted(map(_normalized, {*list_backends(), _PLAIN_AUTOGRAD}))

    @classmethod
    def make(cls, name: str) -> type[Plugin] | None:
        """Return the backend of a name; its module is imported, so that a broken one shows now."""
        from torch._dynamo import list_backends, lookup_backend

        for own in list_backends(exclude_tags=()):
            if _normalized(own) == name:
                from engine_family_dynamo.backend import backend_class

                return backend_class(name, own, lookup_backend(own), _owner(own))
        return None


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_")


def _owner(name: str) -> str:
    """Return the distribution that registers a backend, and its version."""
    for entry_point in metadata.entry_points(group=_GROUP):
        if entry_point.name == name and (dist := entry_point.dist) is not None:
            return f"{dist.name} {dist.version}"
    return f"torch {metadata.version('torch')}"
