"""A loop without a model: the real scheduler and a stand-in whose KV cache is real.

The stand-in keeps a state per token in the slot that the block table names, and computes each
state from the one it finds in the slot before. So a block that is stale, shared by mistake or
computed in part changes the tokens, as it would with a real model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Any

from engine.request import EngineOutput, EngineRequest, Logprob, PositionLogprobs
from engine.runtime.block_pool import BlockPool
from engine.runtime.scheduler import Scheduler
from engine.runtime.step import Row, Step
from engine.sampling_params import SamplingParams

VOCAB_SIZE = 97
_START = 0x9E3779B97F4A7C15


def _next_state(state: int, token: int) -> int:
    return ((state ^ token) * 0xD6E8FEB86659FD93 + token + 1) % 2**64


def _token(state: int) -> int:
    return (state >> 40) % VOCAB_SIZE


def continuation(prompt: Ids[int], count: int) -> list[int]:
    """Return the tokens that `FakeModel` makes of a prompt, computed without a cache."""
    state = _START
    for token in prompt:
        state = _next_state(state, token)
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(_token(state))
        state = _next_state(state, tokens[-1])
    return tokens


def random_prompt(count: int) -> list[int]:
    """Return as many random token ids."""
    return [random.randrange(VOCAB_SIZE) for _ in range(count)]  # noqa: S311 - no secret


def row_sizes(step: Step) -> list[tuple[str, int]]:
    """Return request id and number of tokens of each row."""
    return [(row.sequence.request.request_id, row.num_tokens) for row in step.rows]


@dataclass(frozen=True)
class FakeToken:
    """What the stand-in samples; see `engine.runtime.step.Sampled`."""

    token_id: int
    logprobs: PositionLogprobs | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    embedding: list[float] | None = None


class FakeModel:
    """Runs steps on a KV cache of states.

    Args:
        num_blocks: blocks of the cache.
        block_size: tokens in a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._cache = [[-1] * block_size for _ in range(num_blocks)]

    def run(self, step: Step) -> dict[str, FakeToken]:
        """Compute a step's tokens and return what is sampled, by request id."""
        sampled = {}
        for row in step.rows:
            state = self._compute(row)
            prompt_logprobs = _prompt_logprobs(row)
            if not row.samples and prompt_logprobs is None:
                continue
            token = _token(state) if row.samples else -1
            logprobs = None
            if row.sequence.request.params.logprobs is not None:
                logprobs = [Logprob(token, -float(row.sequence.num_tokens), 1)]
            sampled[row.sequence.request.request_id] = FakeToken(token, logprobs, prompt_logprobs)
        return sampled

    def _compute(self, row: Row) -> int:
        sequence, size = row.sequence, self._block_size
        first, state = sequence.num_computed_tokens, _START
        if first:
            state = self._cache[sequence.block_ids[(first - 1) // size]][(first - 1) % size]
        for position in range(first, first + row.num_tokens):
            state = _next_state(state, sequence.token_ids[position])
            self._cache[sequence.block_ids[position // size]][position % size] = state
        return state


def _prompt_logprobs(row: Row) -> list[PositionLogprobs] | None:
    """Return an entry for each prompt token that the row predicts: minus its position."""
    sequence = row.sequence
    first = sequence.num_computed_tokens + 1
    positions = range(first, min(first + row.num_tokens, sequence.num_prompt_tokens))
    if sequence.request.params.prompt_logprobs is None or not positions:
        return None
    return [[Logprob(sequence.token_ids[p], -float(p), 1)] for p in positions]


class FakeLoop:
    """The real scheduler, the stand-in, and what came out.

    Attributes:
        scheduler: to be inspected and told to abort.
        tokens: by request id, all tokens so far.
        ended: by request id, the last output.
        steps: what was scheduled, empty steps left out.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 65,
        block_size: int = 4,
        caching: bool = True,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 128,
        max_queue: int = 1000,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size, caching)
        self.scheduler = Scheduler(
            pool=self.pool,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            max_queue=max_queue,
        )
        self._model = FakeModel(num_blocks, block_size)
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, EngineOutput] = {}
        self.steps: list[Step] = []

    def add(
        self, request_id: str, prompt: Ids[int], end_token_ids: Ids[int] = (), **params: Any
    ) -> None:
        """Add a request; `params` are those of `SamplingParams`.

        Raises:
            RequestError: the scheduler refuses it.
            QueueFullError: too many wait.
        """
        self.scheduler.add(
            EngineRequest(
                request_id=request_id,
                prompt_token_ids=list(prompt),
                params=SamplingParams(**params),
                end_token_ids=list(end_token_ids),
            )
        )
        self.tokens[request_id] = []

    def step(self) -> list[EngineOutput]:
        """Schedule, run and finish one step."""
        return self.finish(self.scheduler.schedule())

    def finish(self, step: Step) -> list[EngineOutput]:
        """Run a step that was scheduled, and take its results in."""
        if step.rows:
            self.steps.append(step)
        outputs = self.scheduler.finish_step(step, self._model.run(step))
        for output in outputs:
            self.tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.ended[output.request_id] = output
        return outputs

    @property
    def empty(self) -> bool:
        """Whether nothing is left: no request, no owned block, no work."""
        scheduler, pool = self.scheduler, self.pool
        left = scheduler.num_running + scheduler.num_waiting + pool.capacity - pool.num_free
        return not left and not scheduler.has_work

    def run(self, limit: int = 10_000) -> None:
        """Step until there is nothing to do.

        Raises:
            RuntimeError: there still is after `limit` steps.
        """
        for _ in range(limit):
            if not self.scheduler.has_work:
                return
            self.step()
        raise RuntimeError(f"still at work after {limit} steps")
