"""Tokenizes long texts beside the event loop, so that no stream waits for somebody's book."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

_SHORT = 4096
"""Characters that are tokenized in well under a millisecond; a thread would cost more."""


class TokenizerThread:
    """Runs work that needs the tokenizer, at once or on a thread of its own.

    The thread has a copy of the tokenizer: fast tokenizers release the interpreter's lock, and
    one that is used by two threads may refuse with `Already borrowed`.

    Args:
        tokenizer: a transformers fast tokenizer, or None.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._copy: Any = None
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[Any], ResultT], size: int) -> ResultT:
        """Return what the work makes of a tokenizer.

        Args:
            work: gets the tokenizer; must not keep it.
            size: characters that it reads, about.
        """
        if size <= _SHORT or self._tokenizer is None:
            return work(self._tokenizer)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._work, work)

    def _work(self, work: Callable[[Any], ResultT]) -> ResultT:
        if self._copy is None:
            self._copy = copy.deepcopy(self._tokenizer)
        return work(self._copy)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
