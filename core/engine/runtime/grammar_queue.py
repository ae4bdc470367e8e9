"""Compiles what outputs must look like, beside the loop: no step waits for a grammar."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from engine.errors import EngineError, PluginError, RequestError
from engine.grammars import Grammar, GrammarPlugin, Matcher
from engine.registry import Registry
from engine.request import EngineRequest
from engine.structured_outputs import StructuredOutputs

_KEPT = 256
"""Compiled grammars that are kept, the latest used."""


class Grammars:
    """Compiles the demands of requests on a thread of its own, each once.

    Args:
        name: of the plugin; `auto` takes the first that can be loaded.
        registry: the installed plugins.
        tokenizer: a transformers fast tokenizer, or None.
        vocab_size: V.
        end_token_ids: the model's end tokens.
    """

    def __init__(
        self,
        name: str,
        registry: Registry,
        tokenizer: Any,
        *,
        vocab_size: int,
        end_token_ids: Sequence[int],
    ) -> None:
        self._name, self._registry, self._tokenizer = name, registry, tokenizer
        self._vocab_size, self._end_token_ids = vocab_size, end_token_ids
        self._plugin: GrammarPlugin | None = None
        self._known: OrderedDict[str, Future[Grammar]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None

    def compile(self, asked: StructuredOutputs) -> Future[Grammar]:
        """Return the compiled demand, perhaps before it is there.

        The future's exception is a RequestError when the demand is invalid.
        """
        key = asked.key
        if (future := self._known.get(key)) is None:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
            future = self._known[key] = self._thread.submit(self._compile, asked)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return future

    def _compile(self, asked: StructuredOutputs) -> Grammar:
        if self._plugin is None:
            self._plugin = self._load()
        return self._plugin.compile(asked)

    def _load(self) -> GrammarPlugin:
        if self._tokenizer is None or not self._end_token_ids:
            lacks = "tokenizer" if self._tokenizer is None else "end token"
            raise RequestError(
                f"structured_outputs: this model has no {lacks}, so its output can't be held to "
                "a grammar",
                param="structured_outputs",
            )
        plugin = self._find()
        plugin.load(self._tokenizer, vocab_size=self._vocab_size, end_token_ids=self._end_token_ids)
        return plugin

    def _find(self) -> GrammarPlugin:
        names = [self._name] if self._name != "auto" else self._registry.names("grammars")
        problems = []
        for name in names:
            try:
                made: GrammarPlugin = self._registry.load("grammars", name)()
            except PluginError as error:
                problems.append(str(error))
            else:
                return made
        said = "; ".join(problems) or "no grammar library is installed"
        raise RequestError(f"structured_outputs: {said}", param="structured_outputs")

    def fill(self, matchers: Sequence[Matcher]) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the packed mask of matchers, [R, ceil(V / 32)]."""
        assert self._plugin is not None, "matchers come from it"  # noqa: S101 - our own order
        mask = np.full((len(matchers), -(-self._vocab_size // 32)), -1, dtype=np.int32)
        self._plugin.fill(matchers, mask)
        return mask

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


class GrammarQueue:
    """Holds requests back until their grammars are compiled, so that no step waits for one.

    Args:
        grammars: compiles.
    """

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._held: dict[str, tuple[EngineRequest, Future[Grammar]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, request: EngineRequest, asked: StructuredOutputs) -> None:
        """Begin to compile."""
        self._held[request.request_id] = (request, self._grammars.compile(asked))

    def drop(self, request_id: str) -> bool:
        """Forget a request; return whether it was held."""
        return self._held.pop(request_id, None) is not None

    def wait(self, seconds: float) -> None:
        """Wait until the first is compiled, or the time is up."""
        wait([future for _, future in self._held.values()], seconds, "FIRST_COMPLETED")

    def ready(self) -> list[tuple[EngineRequest, Grammar | EngineError]]:
        """Return, and hold no longer, the requests whose grammars are compiled or refused."""
        done = [name for name, (_, future) in self._held.items() if future.done()]
        result: list[tuple[EngineRequest, Grammar | EngineError]] = []
        for name in done:
            request, future = self._held.pop(name)
            error = future.exception()
            if error is None:
                result.append((request, future.result()))
            elif isinstance(error, EngineError):
                result.append((request, error))
            else:
                result.append((request, RequestError(_failure(error), param="structured_outputs")))
        return result


def _failure(error: BaseException) -> str:
    return f"structured_outputs: the grammar library failed: {type(error).__name__}: {error}"
