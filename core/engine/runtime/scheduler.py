"""Decides which tokens of which sequences are computed in each step.

Sequences are kept in the order of their arrival: the running ones are always older than the
waiting ones, because admission is first come, first served and preemption takes the youngest
running one back to the head of the queue. So the oldest always makes progress.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Mapping

from engine.batch import BatchShape
from engine.errors import QueueFullError, RequestError
from engine.request import EngineOutput, EngineRequest
from engine.runtime.block_pool import BlockPool
from engine.runtime.kv_manager import KVManager
from engine.runtime.sequence import Sequence, State
from engine.runtime.step import Row, Sampled, Step

__all__ = ["Row", "Sampled", "Scheduler", "Step"]


class Scheduler:
    """Continuous batching under a token budget, with paged KV memory.

    `schedule`, run the step, `finish_step`, and so on; `add` and `abort` may come at any time
    between. Not thread-safe.

    Args:
        pool: the KV blocks; nobody else takes any.
        max_num_seqs: sequences that run at the same time.
        max_num_batched_tokens: tokens in one step.
        max_model_len: tokens in one sequence.
        max_queue: sequences that may wait.

    Attributes:
        preemptions: times that a sequence lost its blocks.
        prefix_queries: tokens of admitted sequences that were looked up in the prefix cache.
        prefix_hits: those that were found there.
        prompt_tokens: of admitted sequences.
        generation_tokens: sampled.
        finished: sequences that ended, by reason.
    """

    def __init__(
        self,
        *,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        max_queue: int,
    ) -> None:
        self.pool = pool
        self._kv = KVManager(pool)
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._max_queue = max_queue
        self._live: dict[str, Sequence] = {}
        self._running: dict[str, Row] = {}
        """Each with the row that decodes one token of it (made once, a step needs hundreds)."""
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._early: list[EngineOutput] = []
        """Of sequences that ended without a step; the next `finish_step` delivers them."""
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or deliver something."""
        return bool(self._live or self._early)

    @property
    def num_running(self) -> int:
        """Sequences that own blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, preempted ones included."""
        return len(self._waiting)

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        With `max_tokens` 0 it ends without a token: at once, or after its prompt was computed
        when the prompt's log-probabilities or its pooled states are asked for.

        Raises:
            RequestError: it can never fit, or its id is in use.
            QueueFullError: as many wait as may.
        """
        self._check(request)
        sequence = Sequence(request, self._max_model_len)
        wanted = sequence.prompt_logprobs is not None or request.params.pooling is not None
        if request.params.max_tokens == 0 and not wanted:
            self._end(sequence, "length")
            return
        if len(self._waiting) >= self._max_queue:
            raise QueueFullError(
                f"{len(self._waiting)} sequences wait, {self._max_queue} may (--max-queue); "
                "try again later"
            )
        self._live[request.request_id] = self._waiting[request.request_id] = sequence

    def _check(self, request: EngineRequest) -> None:
        if request.request_id in self._live:
            raise RequestError(
                f"request_id={request.request_id!r}: in use by a request that still runs; "
                "choose another",
                param="request_id",
            )
        prompt = len(request.prompt_token_ids)
        if not prompt:
            raise RequestError("prompt: must have at least one token", param="prompt")
        least = 0 if request.params.max_tokens == 0 else 1
        if prompt + least > self._max_model_len:
            raise RequestError(
                f"prompt: {prompt} tokens and at least {least} to generate don't fit the context "
                f"of {self._max_model_len} tokens; shorten the prompt, or start the engine with "
                "a larger --max-model-len",
                param="prompt",
            )
        blocks, capacity = self.pool.blocks_for(prompt), self.pool.capacity
        if blocks > capacity:
            raise RequestError(
                f"prompt: {prompt} tokens need {blocks} KV blocks, but the whole cache has "
                f"{capacity} ({capacity * self.pool.block_size} tokens); shorten the prompt, or "
                "start the engine with more --kv-cache-memory",
                param="prompt",
            )

    def abort(self, request_id: str, *, reason: str = "abort") -> bool:
        """End a sequence without an output and free its blocks at once.

        Args:
            request_id: whose.
            reason: what it is counted as in `finished`.

        Returns:
            False when there is no such sequence, or not any more.
        """
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._drop(sequence, reason)
        return True

    def schedule(self) -> Step:
        """Put the next step together; it has no rows when nothing can run.

        Who decodes comes first, then who is in the middle of its prompt, then who waits.
        """
        before = self.preemptions
        decoding, unfinished = self._continue_decoding()
        budget = self._max_num_batched_tokens - len(decoding)
        prefilling: list[Row] = []
        for sequence in unfinished:
            # An older sequence may have taken its blocks just now.
            if budget and sequence.state is State.RUNNING:
                budget -= self._compute_prompt(sequence, budget, prefilling)
        self._admit(budget, prefilling)
        sizes = [row.num_tokens for row in prefilling]
        shape = BatchShape(
            num_tokens=len(decoding) + sum(sizes),
            num_reqs=len(decoding) + len(sizes),
            max_query_len=max(sizes, default=min(len(decoding), 1)),
            uniform_decode=bool(decoding) and not sizes,
        )
        return Step((*decoding, *prefilling), shape, self.preemptions - before)

    def schedule_ahead(self, step: Step) -> Step | None:
        """Put together the step after one whose tokens aren't known yet.

        Its rows decode the tokens that the given step makes. A sequence may turn out to have
        ended, and its row is skipped by `finish_step`.

        Args:
            step: runs, or has run; not yet finished.

        Returns:
            None when the next step depends on what this one makes, or somebody could be admitted.
        """
        if self._could_admit():
            return None
        alive = [row for row in step.rows if row.sequence.state is State.RUNNING]
        # Somebody's prompt is unfinished.
        if len(alive) < len(self._running) or not all(row.samples for row in alive):
            return None
        rows: list[Row] = []
        size = self.pool.block_size
        for row in alive:
            sequence = row.sequence
            length = len(sequence.token_ids)
            if length + 1 >= sequence.max_length:
                continue
            if length >= len(sequence.block_ids) * size:
                if not self.pool.num_free:
                    return None
                self._kv.grow(sequence)
            rows.append(self._running[sequence.request.request_id])
        if not rows:
            return None
        return Step(tuple(rows), BatchShape.decode(len(rows)), ahead=True)

    def _could_admit(self) -> bool:
        if not self._waiting or len(self._running) >= self._max_num_seqs:
            return False
        return not self._kv.still_refused(next(iter(self._waiting.values())), len(self._running))

    def _continue_decoding(self) -> tuple[list[Row], list[Sequence]]:
        """Return a row for each sequence that decodes, and those amid their prompt.

        There are never more of them than tokens in the budget, because each was admitted with
        a token that the others had left.
        """
        rows: list[Row] = []
        unfinished: list[Sequence] = []
        block_size = self.pool.block_size
        for row in list(self._running.values()):
            sequence = row.sequence
            computed = sequence.num_computed_tokens
            if computed != len(sequence.token_ids) - 1 or computed < sequence.num_prompt_tokens:
                unfinished.append(sequence)
            elif computed < len(sequence.block_ids) * block_size or self._grow(sequence):
                rows.append(row)
        return rows, unfinished

    def _grow(self, sequence: Sequence) -> bool:
        """Give a sequence one more block, preempting the youngest until there is one.

        Returns:
            False when it had to go itself: it is the youngest, or the cache is too small for it.
        """
        while not self.pool.num_free:
            youngest = self._running[next(reversed(self._running))].sequence
            if youngest is sequence and len(self._running) == 1:
                self._end(sequence, "length")
                return False
            self._preempt(youngest)
            if youngest is sequence:
                return False
        self._kv.grow(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; it will be computed again from its tokens."""
        request_id = sequence.request.request_id
        del self._running[request_id]
        self._waiting[request_id] = sequence
        self._waiting.move_to_end(request_id, last=False)
        self._kv.release(sequence)
        sequence.restart()
        sequence.state = State.WAITING
        self.preemptions += 1

    def _compute_prompt(self, sequence: Sequence, budget: int, rows: list[Row]) -> int:
        """Add a row with as many of the missing tokens as the budget allows; return how many."""
        count = min(len(sequence.token_ids) - sequence.num_computed_tokens, budget)
        rows.append(Row(sequence, count))
        return count

    def _admit(self, budget: int, rows: list[Row]) -> None:
        """Let waiting sequences run, in order, while tokens, sequences and blocks allow."""
        if not self._waiting:
            return
        coming = {digest for row in rows for _, digest in self._kv.filled_by(row)}
        while self._waiting and budget and len(self._running) < self._max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            if not self._kv.admit(sequence, len(self._running), coming):
                return
            request_id = sequence.request.request_id
            del self._waiting[request_id]
            self._running[request_id] = Row(sequence, 1)
            sequence.state = State.RUNNING
            self._count_admission(sequence)
            budget -= self._compute_prompt(sequence, budget, rows)
            coming.update(digest for _, digest in self._kv.filled_by(rows[-1]))

    def _count_admission(self, sequence: Sequence) -> None:
        """Count a sequence the first time that it runs; preemption doesn't count it again."""
        if sequence.admitted:
            return
        sequence.admitted = True
        if sequence.request.arrival:
            sequence.queue_seconds = max(0.0, time.time() - sequence.request.arrival)
        sequence.num_cached_tokens = sequence.num_computed_tokens
        self.prompt_tokens += sequence.num_prompt_tokens
        if self.pool.enable_prefix_caching and not sequence.needs_every_token:
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.num_computed_tokens

    def finish_step(self, step: Step, sampled: Mapping[str, Sampled]) -> list[EngineOutput]:
        """Take a step's results in: tokens are appended, what has ended is freed.

        Args:
            step: what `schedule` returned, after it ran.
            sampled: by request id, for every row that samples and for every row that has
                log-probabilities of its prompt; rows that were aborted meanwhile are skipped.

        Returns:
            One output for each new token, and for each sequence that ended.
        """
        outputs, self._early = self._early, []
        running = State.RUNNING
        for row in step.rows:
            if row.sequence.state is running:
                token = sampled.get(row.sequence.request.request_id)
                if (output := self._advance(row, token)) is not None:
                    outputs.append(output)
        return outputs

    def _advance(self, row: Row, sampled: Sampled | None) -> EngineOutput | None:
        sequence = row.sequence
        self._kv.publish(row)
        sequence.num_computed_tokens += row.num_tokens
        prompt_logprobs = sequence.prompt_logprobs
        if prompt_logprobs is not None and sampled is not None:
            prompt_logprobs += sampled.prompt_logprobs or ()
        length = len(sequence.token_ids)
        if sequence.num_computed_tokens < length:
            return None
        if length >= sequence.max_length:  # max_tokens is 0
            self._drop(sequence, "length")
            return _last_output(sequence, "length", sampled)
        request_id = sequence.request.request_id
        if sampled is None:
            raise KeyError(f"no token was sampled for {request_id}")
        token_id, logprobs = sampled.token_id, sampled.logprobs
        finish_reason, stop_reason = sequence.append(token_id)
        self.generation_tokens += 1
        sequence.prompt_logprobs = None
        if finish_reason is not None:
            self._drop(sequence, finish_reason)
        return EngineOutput(
            request_id=request_id,
            token_ids=[token_id],
            logprobs=None if logprobs is None else [logprobs],
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_cached_tokens=sequence.num_cached_tokens,
            queue_seconds=sequence.queue_seconds,
        )

    def _end(self, sequence: Sequence, reason: str) -> None:
        """End a sequence that gets no more tokens; the next `finish_step` says so."""
        self._drop(sequence, reason)
        self._early.append(_last_output(sequence, reason))

    def _drop(self, sequence: Sequence, reason: str) -> None:
        request_id = sequence.request.request_id
        self._live.pop(request_id, None)
        self._running.pop(request_id, None)
        self._waiting.pop(request_id, None)
        self._kv.release(sequence)
        sequence.state = State.ENDED
        self.finished[reason] += 1


def _last_output(sequence: Sequence, reason: str, sampled: Sampled | None = None) -> EngineOutput:
    """Return the output of a sequence that ends without a new token."""
    return EngineOutput(
        request_id=sequence.request.request_id,
        prompt_logprobs=sequence.prompt_logprobs,
        finish_reason=reason,
        num_cached_tokens=sequence.num_cached_tokens,
        queue_seconds=sequence.queue_seconds,
        embedding=None if sampled is None else sampled.embedding,
    )
