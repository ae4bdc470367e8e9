"""What the server needs of an engine; `engine.AsyncEngine` is one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

from engine.request import EngineStats, RequestOutput
from engine.resolution import Resolution
from engine.sampling_params import SamplingParams

ResultT = TypeVar("ResultT")


class ResultStream(Protocol):
    """The results of one request: an async iterator of what is new since the last one."""

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        """Iterate over the news."""
        ...

    async def __anext__(self) -> RequestOutput:
        """Return the next news, or raise the error that ended the request."""
        ...

    async def aclose(self) -> None:
        """End the request if it still runs."""
        ...


class Engine(Protocol):
    """An engine that serves many requests at once.

    Attributes:
        resolution: the settings in force.
        tokenizer: a transformers fast tokenizer, or None.
        model_name: what the model is called unless the server is told otherwise.
        max_model_len: the longest context, in tokens.
        pooling: how embeddings are made, `mean` or `last`; None when they can't be.
    """

    resolution: Resolution
    tokenizer: Any
    model_name: str
    max_model_len: int
    pooling: str | None

    async def submit(self, prompt: str | list[int], params: SamplingParams) -> ResultStream:
        """Start a request; raises RequestError, QueueFullError or EngineDeadError."""
        ...

    async def run_with_tokenizer(self, work: Callable[[Any], ResultT], size: int) -> ResultT:
        """Return what `work` makes of the tokenizer; for long texts, on a thread."""
        ...

    async def stats(self) -> EngineStats:
        """Return the counters."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it can serve."""
        ...

    async def wait_dead(self) -> None:
        """Wait until it has died."""
        ...

    async def close(self) -> None:
        """Stop it; running requests end with EngineDeadError."""
        ...
