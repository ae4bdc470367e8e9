"""A backend of torch.compile as one of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from torch import fx
from torch._guards import TracingContext, detect_fake_mode, tracing

from engine.plugin import Numerics, StartupCost
from engine.strategies import Backend

CompileGraph = Callable[..., Callable[..., Any]]
"""`(graph, example inputs, [options=]) -> callable`, as torch.compile calls a backend."""


class DynamoOptions(BaseModel):
    """Whatever the backend takes as `options` of torch.compile; it checks them itself."""

    model_config = ConfigDict(frozen=True, extra="allow")


class DynamoBackend(Backend):
    """Calls the backend as torch.compile would, with fake example inputs."""

    NUMERICS = Numerics.TOLERANCE
    STARTUP_COST = StartupCost.SECONDS
    OPTIONS = DynamoOptions

    COMPILE: ClassVar[CompileGraph]

    def compile(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
    ) -> Callable[..., Any]:
        """Let the backend compile one graph."""
        del dynamic
        mode = detect_fake_mode(example_inputs)
        # Where torch.compile would have put the shapes; backends look there.
        with tracing(TracingContext(mode) if mode is not None else None):
            return self.torch_backend()(graph, list(example_inputs))  # type: ignore[no-any-return]  # a stranger's callable

    def torch_backend(self) -> Callable[..., Any]:
        """Return the backend's own function, with the user's options if there are any."""
        given = dict(self.options.model_extra or {})
        function = type(self).COMPILE
        return partial(function, options=given) if given else function


def backend_class(
    name: str, own_name: str, function: CompileGraph, owner: str
) -> type[DynamoBackend]:
    """Return the plugin class of one backend.

    Args:
        name: its normalized name.
        own_name: its name in PyTorch's registry.
        function: what PyTorch calls.
        owner: the distribution that it comes from, with its version.
    """
    members = {
        "__module__": __name__,
        "__doc__": f"The torch.compile backend {own_name}, of {owner}.",
        "NAME": name,
        "SUMMARY": f"the torch.compile backend {own_name} of {owner}",
        "VERSION": owner,
        "COMPILE": staticmethod(function),
    }
    return type(f"DynamoBackend_{name}", (DynamoBackend,), members)
