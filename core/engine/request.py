"""What crosses between the front end and the engine loop, and what users get back.

Everything here can be sent through msgpack as it is; it imports nothing of the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.ledger import StartupLedger
from engine.sampling_params import SamplingParams


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue (a request with n > 1 becomes n of these).

    Attributes:
        request_id: unique among live requests.
        prompt_token_ids: at least one id.
        params: sampling; `n` is 1, and `seed` is set if the sequence is to be repeatable.
        end_token_ids: the model's end tokens, applied unless `params.ignore_eos`.
        arrival: seconds since the epoch.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    end_token_ids: list[int] = []
    arrival: float = 0.0


class Logprob(msgspec.Struct, frozen=True):
    """The log-probability of one token at one position.

    Attributes:
        token_id: the token.
        logprob: natural logarithm, under the model's distribution before temperature and
            filters, after penalties and bias.
        rank: 1 for the likeliest.
    """

    token_id: int
    logprob: float
    rank: int


PositionLogprobs = list[Logprob]
"""The chosen token first, then the likeliest ones by rank (the chosen may occur again)."""


class EngineOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step made for one sequence.

    Attributes:
        request_id: the sequence.
        token_ids: the new tokens (none when it only ends, for instance by an error).
        logprobs: one entry per new token when asked for.
        prompt_logprobs: sent once, with the first token; the first entry is None.
        finish_reason: `stop`, `length`, `abort` or `error`; None while it goes on.
        stop_reason: the token id that ended it, if one did.
        error: the sentence that belongs to finish_reason `error`.
        num_cached_tokens: prompt tokens whose KV came from the prefix cache.
        embedding: the pooled prompt, when asked for; with the last output.
        queue_seconds: from the request's arrival until the sequence first ran; 0 if unknown.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    embedding: list[float] | None = None
    queue_seconds: float = 0.0


class CaptureTotals(msgspec.Struct, frozen=True):
    """Recordings of one kind.

    Attributes:
        recorded, dropped: shapes that were recorded, and given up.
        seconds: that recording took.
        num_bytes: by which the shared pool grew.
    """

    recorded: int = 0
    dropped: int = 0
    seconds: float = 0.0
    num_bytes: int = 0

    def plus(self, seconds: float, num_bytes: int, *, dropped: bool) -> CaptureTotals:
        """Return the totals with one recording more."""
        return CaptureTotals(
            self.recorded + (not dropped),
            self.dropped + dropped,
            self.seconds + seconds,
            self.num_bytes + num_bytes,
        )


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the loop, for metrics.

    Counters are totals since start; `steps` is keyed `graph_mode|kind|padded_tokens|reason`.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    padded_tokens: int = 0
    captures: dict[str, CaptureTotals] = {}
    late_compiles: int = 0
    steps: dict[str, int] = {}
    finished: dict[str, int] = {}
    startup: StartupLedger = StartupLedger()


@dataclass
class CompletionOutput:
    """One of the n completions of a prompt.

    Attributes:
        index: from 0 to n - 1.
        text: all text so far (the new text only, in a stream of deltas).
        token_ids: all token ids so far (the new ones only, in a stream of deltas).
        logprobs: one entry per token of `token_ids` when asked for.
        finish_reason: `stop`, `length`, `abort` or `error`; None while it goes on.
        stop_reason: the stop string or token id that ended it, if one did.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestOutput:
    """The result of one prompt, whole or (in a stream) what is new.

    Attributes:
        request_id: as given or made.
        prompt: the prompt's text, if it came as text.
        prompt_token_ids: the prompt's ids.
        outputs: the completions; in a stream, those that have news.
        finished: all n completions have ended.
        prompt_logprobs: one entry per prompt token when asked for; the first is None.
        num_cached_tokens: prompt tokens whose KV came from the prefix cache.
        error: the sentence that belongs to a completion's finish_reason `error`.
        embedding: the pooled prompt, when asked for; with the last result.
        queue_seconds: from the request's arrival until it first ran; 0 if unknown.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    embedding: list[float] | None = None
    queue_seconds: float = 0.0
