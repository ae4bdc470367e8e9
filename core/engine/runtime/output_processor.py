"""Turns what the loop makes of sequences into what users get of requests.

A request for n completions is n sequences in the loop. Here their tokens become text, stop
strings end them, and the results of one request are put together.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from engine.errors import RequestError
from engine.request import CompletionOutput, EngineOutput, EngineRequest, RequestOutput
from engine.runtime.counter_rng import child_seed
from engine.runtime.detokenizer import Detokenizer, TextStream
from engine.runtime.stop_strings import StopMatcher, StopStrings
from engine.sampling_params import SamplingParams


class OutputProcessor:
    """Keeps the state of every request that isn't finished.

    Args:
        tokenizer: a transformers fast tokenizer; None leaves all text empty.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        self._requests: dict[str, _Request] = {}
        self._completions: dict[str, _Completion] = {}

    @property
    def num_live(self) -> int:
        """Sequences that haven't ended."""
        return len(self._completions)

    def expand(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        end_token_ids: list[int],
    ) -> list[EngineRequest]:
        """Register a request and return its sequences, one for each of the n completions.

        Their seeds differ and follow from the request's seed and the index alone. The prompt's
        log-probabilities are asked of the first only.

        Raises:
            RequestError: the id is in use, or stop strings are asked for without a tokenizer.
        """
        if request_id in self._requests:
            raise RequestError(
                f"request_id={request_id!r}: in use by a request that still runs; choose another",
                param="request_id",
            )
        if params.stop and self._detokenizer is None:
            raise RequestError(
                f"stop={params.stop!r}: stop strings need a tokenizer, and this model is served "
                "without one; use stop_token_ids",
                param="stop",
            )
        request = _Request(request_id, prompt, prompt_token_ids, params.n)
        strings = StopStrings(params.stop) if params.stop else None
        self._requests[request_id] = request
        arrival = time.time()
        children = []
        for index in range(params.n):
            child_id = f"{request_id}-{index}"
            stream = None
            if self._detokenizer is not None:
                stream = self._detokenizer.stream(
                    prompt_token_ids, skip_special_tokens=params.skip_special_tokens
                )
            completion = _Completion(request, child_id, index, params, stream, strings)
            request.completions.append(completion)
            self._completions[child_id] = completion
            child_params = msgspec.structs.replace(
                params,
                n=1,
                seed=child_seed(params.seed, index),
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,
            )
            children.append(
                EngineRequest(
                    request_id=child_id,
                    prompt_token_ids=prompt_token_ids,
                    params=child_params,
                    end_token_ids=end_token_ids,
                    arrival=arrival,
                )
            )
        return children

    def parent(self, child_id: str) -> str | None:
        """Return the request that a sequence belongs to; None when it has ended."""
        completion = self._completions.get(child_id)
        return None if completion is None else completion.request.request_id

    def process(
        self, outputs: Iterable[EngineOutput], *, delta: bool
    ) -> tuple[list[RequestOutput], list[str]]:
        """Take the outputs of a step in.

        Outputs of unknown sequences are skipped: a sequence that was aborted or ended by a stop
        string may have been in a step that was under way.

        Args:
            outputs: from the loop.
            delta: results hold only what is new and only the completions that have news.
                Otherwise they hold everything so far, and are the same objects at every call for
                a request: they grow.

        Returns:
            A result for each request with news, and the ids of sequences for the loop to end.
        """
        news: dict[str, tuple[_Request, dict[int, _Completion]]] = {}
        aborts: list[str] = []
        for output in outputs:
            completion = self._completions.get(output.request_id)
            if completion is None:
                continue
            completion.take(output)
            request = completion.request
            request.take(output, completion.index)
            if completion.finished:
                self._end(completion)
                if output.finish_reason is None:
                    aborts.append(output.request_id)
            found = news.get(request.request_id)
            if found is None:
                news[request.request_id] = (request, {completion.index: completion})
            else:
                found[1][completion.index] = completion
        results = [
            request.delta(completions.values()) if delta else request.cumulative()
            for request, completions in news.values()
        ]
        return results, aborts

    def _end(self, completion: _Completion) -> None:
        del self._completions[completion.child_id]
        request = completion.request
        request.num_live -= 1
        if not request.num_live:
            del self._requests[request.request_id]

    def abort(self, request_id: str) -> list[str]:
        """Forget a request; return the ids of its sequences for the loop to end.

        Unknown and finished ones have none.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        live = [c.child_id for c in request.completions if not c.finished]
        for child_id in live:
            del self._completions[child_id]
        return live


class _Completion:
    """One of the completions: its text so far and the news since the last result."""

    def __init__(
        self,
        request: _Request,
        child_id: str,
        index: int,
        params: SamplingParams,
        stream: TextStream | None,
        strings: StopStrings | None,
    ) -> None:
        self.request, self.child_id, self.index = request, child_id, index
        self._stream = stream
        self._include_stop = params.include_stop_str_in_output
        self._stops = None
        if strings is not None:
            self._stops = StopMatcher(strings, include=params.include_stop_str_in_output)
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._with_logprobs = params.logprobs is not None
        self.news = self._blank()

    def _blank(self) -> CompletionOutput:
        return CompletionOutput(self.index, logprobs=[] if self._with_logprobs else None)

    @property
    def finished(self) -> bool:
        """Whether it has ended, for the loop or by a stop string."""
        return self.news.finish_reason is not None

    def hand_over(self) -> CompletionOutput:
        """Return the news and begin new ones."""
        news = self.news
        if news.finish_reason is None:
            self.news = self._blank()
        return news

    def take(self, output: EngineOutput) -> None:
        """Add a step's tokens, up to the one that completes a stop string."""
        news, ids, reason = self.news, output.token_ids, output.finish_reason
        # A token that ended the output isn't text; like a stop string it can be included.
        hidden = 1 if reason == "stop" and ids and not self._include_stop else 0
        count = len(ids)
        if self._stream is not None and ids:
            if self._stops is None:
                for token in ids if not hidden else ids[:-1]:
                    news.text += self._stream.push(token)
            else:
                count = self._take_until_stop(ids, count - hidden, self._stream, self._stops)
        news.token_ids += ids[:count]
        if news.logprobs is not None and output.logprobs is not None:
            news.logprobs += output.logprobs[:count]
        self._num_tokens += count
        if reason is not None:
            self._flush()
            news.finish_reason, news.stop_reason = reason, output.stop_reason
        if self._stops is not None and self._stops.found is not None:
            news.finish_reason, news.stop_reason = "stop", self._stops.found

    def _take_until_stop(
        self, ids: list[int], num_shown: int, stream: TextStream, stops: StopMatcher
    ) -> int:
        """Add text until a stop string is complete; return how many tokens that took."""
        for count, token in enumerate(ids[:num_shown], start=1):
            early = self._num_tokens + count < self._min_tokens
            self.news.text += stops.push(stream.push(token), ignore=early)
            # Text that is held back (a run of byte tokens) may hold a stop string already.
            if stops.found is None and stream.holds and not early:
                tail = stream.tail()
                if "\ufffd" not in tail and stops.would_stop(tail):
                    self.news.text += stops.push(stream.flush())
            if stops.found is not None:
                return count
        return len(ids)

    def _flush(self) -> None:
        """Add what was held back."""
        if self._stream is None:
            return
        tail = self._stream.flush()
        if self._stops is None:
            self.news.text += tail
        else:
            early = self._num_tokens < self._min_tokens
            self.news.text += self._stops.push(tail, ignore=early) + self._stops.release()


class _Request:
    """A request, and what belongs to it as a whole."""

    def __init__(
        self, request_id: str, prompt: str | None, prompt_token_ids: list[int], count: int
    ) -> None:
        self.request_id = request_id
        self.completions: list[_Completion] = []
        self.num_live = count
        self._whole = RequestOutput(request_id, prompt, prompt_token_ids, [], finished=False)

    def take(self, output: EngineOutput, index: int) -> None:
        """Note what an output says of the whole request."""
        if index == 0:
            # The others share the first one's prompt, so their hits say nothing new.
            self._whole.num_cached_tokens = output.num_cached_tokens
            self._whole.queue_seconds = output.queue_seconds
        if output.embedding is not None:
            self._whole.embedding = output.embedding
        if output.prompt_logprobs is not None:
            self._whole.prompt_logprobs = output.prompt_logprobs
        if output.error is not None:
            self._whole.error = output.error

    def cumulative(self) -> RequestOutput:
        """Return all so far, always in the same objects."""
        whole = self._whole
        if not whole.outputs:
            whole.outputs = [completion.news for completion in self.completions]
        whole.finished = not self.num_live
        return whole

    def delta(self, completions: Iterable[_Completion]) -> RequestOutput:
        """Return the news of some completions."""
        whole = self._whole
        news = RequestOutput(
            self.request_id,
            whole.prompt,
            whole.prompt_token_ids,
            [completion.hand_over() for completion in completions],
            finished=not self.num_live,
            prompt_logprobs=whole.prompt_logprobs,
            embedding=whole.embedding,
            queue_seconds=whole.queue_seconds,
            num_cached_tokens=whole.num_cached_tokens,
            error=whole.error,
        )
        whole.prompt_logprobs = whole.error = None
        return news
