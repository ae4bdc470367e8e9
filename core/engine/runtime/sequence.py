"""One request inside the loop: its tokens, its KV blocks and how far it has come."""

from __future__ import annotations

import sys
from array import array
from enum import Enum
from hashlib import blake2b

from engine.request import EngineRequest, PositionLogprobs

_NO_PARENT = b""


class State(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    """In the queue: new, or preempted."""
    RUNNING = "running"
    """Owns blocks; each step may compute some of its tokens."""
    ENDED = "ended"
    """Finished or aborted; owns no block any more."""


class Sequence:
    """An `EngineRequest` that is being continued. Mutable; changed by the scheduler alone.

    Args:
        request: what to continue.
        max_model_len: the longest context in tokens, prompt included; None for no limit.

    Attributes:
        request: as it came.
        token_ids: prompt and output.
        num_prompt_tokens: the first of them are the prompt.
        num_computed_tokens: tokens whose keys and values are in the cache.
        block_ids: KV blocks, in the order of the tokens; they may reach beyond the computed ones.
            Stale when it has ended.
        num_cached_tokens: prompt tokens found in the prefix cache when it first ran.
        max_length: tokens at which it ends, whatever they are.
        state: waiting, running or ended.
        admitted: whether it ever ran.
        queue_seconds: from its arrival until it first ran; 0 if that isn't known.
        prompt_logprobs: what was gathered so far; None when not asked for, or already sent.
    """

    __slots__ = (
        "_block_hashes",
        "_ending_token_ids",
        "_min_length",
        "admitted",
        "block_ids",
        "max_length",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "prompt_logprobs",
        "queue_seconds",
        "request",
        "state",
        "token_ids",
    )

    def __init__(self, request: EngineRequest, max_model_len: int | None = None) -> None:
        params = request.params
        prompt = len(request.prompt_token_ids)
        longest = sys.maxsize if max_model_len is None else max_model_len
        wanted = sys.maxsize if params.max_tokens is None else prompt + params.max_tokens
        self.request = request
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_prompt_tokens = prompt
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        self.num_cached_tokens = 0
        self.max_length = min(wanted, longest)
        self.state = State.WAITING
        self.admitted = False
        self.queue_seconds = 0.0
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self._min_length = prompt + params.min_tokens
        ends = [] if params.ignore_eos else request.end_token_ids
        self._ending_token_ids = frozenset([*ends, *params.stop_token_ids])
        self._block_hashes: list[bytes] = []

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens made so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The tokens made so far (a copy)."""
        return self.token_ids[self.num_prompt_tokens :]

    def append(self, token_id: int) -> tuple[str | None, int | None]:
        """Append a new token.

        A token of `stop_token_ids` is named as the stop reason, also when it is an end token of
        the model; another end token isn't. Before `min_tokens` only the length ends a sequence.

        Returns:
            Finish reason and stop reason; None while it goes on.
        """
        tokens = self.token_ids
        tokens.append(token_id)
        if token_id in self._ending_token_ids and len(tokens) >= self._min_length:
            return "stop", token_id if token_id in self.request.params.stop_token_ids else None
        if len(tokens) >= self.max_length:
            return "length", None
        return None, None

    def restart(self) -> None:
        """Forget what was computed, keep the tokens: everything will be computed again."""
        self.num_computed_tokens = 0
        self.block_ids = []
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    def block_hash(self, index: int, block_size: int) -> bytes:
        """Return the content hash of a full block: of its token ids and all before them.

        Hashes are chained and kept, so that a token is hashed once in the sequence's life.

        Args:
            index: the block; tokens up to `(index + 1) * block_size` must exist.
            block_size: tokens in a block; the same at every call.
        """
        hashes = self._block_hashes
        while len(hashes) <= index:
            start = len(hashes) * block_size
            parent = hashes[-1] if hashes else _NO_PARENT
            block = array("q", self.token_ids[start : start + block_size])
            hashes.append(blake2b(parent + block.tobytes(), digest_size=32).digest())
        return hashes[index]

    @property
    def needs_every_token(self) -> bool:
        """Whether the states of all prompt tokens are needed, cached or not.

        For the prompt's log-probabilities while they are due, and for their average.
        """
        return self.prompt_logprobs is not None or self.request.params.pooling == "mean"

    def num_reusable_blocks(self, block_size: int) -> int:
        """Return how many blocks may come from the prefix cache.

        Never all tokens: the last one is always computed, because its logits are needed. None at
        all while every token must be computed.
        """
        if self.needs_every_token:
            return 0
        return (len(self.token_ids) - 1) // block_size
