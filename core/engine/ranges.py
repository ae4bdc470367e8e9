"""Names the parts of a step for a profiler (`engine profile`, or any use of `torch.profiler`).

Nobody is asked to switch anything on: PyTorch keeps a flag that says whether its profiler runs, and
where it doesn't, a range costs the look at that flag.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

PREFIX = "engine:"
"""Begins the name of each range in a trace."""

_NOTHING: AbstractContextManager[None] = nullcontext()


def profiling() -> bool:
    """Say whether PyTorch's profiler runs; for loops that would ask many times in a step."""
    return profiler._is_profiler_enabled  # noqa: SLF001 - its hooks look at it; it has no public name


def step_range(name: str) -> AbstractContextManager[None]:
    """Return a context that shows as `engine:NAME` in a trace; one that does nothing otherwise."""
    if not profiler._is_profiler_enabled:  # noqa: SLF001 - as above
        return _NOTHING
    return profiler.record_function(PREFIX + name)
