"""Chooses the next token of each sequence from its logits.

The order is: float32, `logit_bias`, repetition, presence and frequency penalties, `min_tokens`;
log-probabilities are reported of what results; then temperature, top-k, top-p, min-p, the draw.

The bias comes first because it corrects the model; penalties then act on what the model is taken
to say. `min_tokens` comes after both, so that no bias brings a forbidden token back. What follows
is about how to choose from the distribution, not about what it is, so it isn't reported.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.request import EngineRequest, PositionLogprobs
from engine.runtime.counter_rng import derive, uniforms
from engine.runtime.draw import DrawSettings, draw
from engine.runtime.likeliest import likeliest_token
from engine.runtime.log_probabilities import measure, read
from engine.runtime.penalties import Penalties, TokenHistory
from engine.runtime.readback import Readback

_PROMPT_ROWS = 256
"""Prompt positions whose log-probabilities are computed at once, to bound the float32 copy."""


class SampledSequence(TokenHistory, Protocol):
    """What the sampler reads of a sequence."""

    @property
    def num_output_tokens(self) -> int: ...  # noqa: D102 - those after the prompt


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What a step made of one row.

    Attributes:
        token_id: the chosen token.
        logprobs: of that token and the likeliest ones, when asked for.
        prompt_logprobs: of the prompt tokens that the row's positions predict, when asked for
            (filled in by the runner).
        embedding: of the prompt that the row ends, when asked for (filled in by the runner).
        error: why no token could be chosen; `token_id` means nothing then.
    """

    token_id: int
    logprobs: PositionLogprobs | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    embedding: list[float] | None = None
    error: str | None = None


class Sampler:
    """Samples for all sequences of a step at once, on the device of the logits.

    A draw depends on the sequence's seed and the index of the token, on nothing else in the batch
    and on no state, so a seeded sequence repeats at any row, beside any neighbours and after
    preemption. Sequences without a seed get one from the engine's seed and the order in which
    they were first sampled.

    Args:
        vocab_size: V; logits beyond it (padding of the output layer) are left out.
        device: of the logits.
        seed: the engine's.
    """

    def __init__(self, vocab_size: int, device: torch.device | str, seed: int) -> None:
        self.vocab_size = vocab_size
        self._device = torch.device(device)
        self._seed = seed
        self._num_unseeded = 0
        self._penalties = Penalties(self._device)
        self._plans: dict[str, _Plan] = {}

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a sequence that has ended; unknown ones are ignored."""
        self._plans.pop(request_id, None)
        self._penalties.forget(request_id)

    def sample(self, logits: Tensor, sequences: Sequence[SampledSequence]) -> list[SampledToken]:
        """Choose a token for each row and wait for it; otherwise as `start`."""
        return self.start(logits, sequences).read()

    def may_run_ahead(self, sequences: Iterable[SampledSequence]) -> bool:
        """Say whether their next tokens can be chosen while the last ones aren't known yet."""
        return not any(self._plan(sequence).penalised for sequence in sequences)

    @torch.inference_mode()
    def start(
        self, logits: Tensor, sequences: Sequence[SampledSequence], *, unknown: int = 0
    ) -> Sampling:
        """Choose a token for each row, without waiting for the device.

        A row whose logits are NaN, infinite or all forbidden has an error instead; the other
        rows aren't touched by it. There is one copy to the host; the device is waited for only
        when top-k or top-p is used.

        Args:
            logits: [N, V] of any floating dtype; not changed.
            sequences: N of them; row i belongs to sequences[i].
            unknown: tokens of each sequence that were sampled but aren't known yet.
        """
        plans = [self._plan(sequence) for sequence in sequences]
        counts = [sequence.num_output_tokens + unknown for sequence in sequences]
        logits = logits[:, : self.vocab_size]
        if _all_plain(plans, counts):
            values, tokens = likeliest_token(logits)
            return Sampling(tokens, Readback((tokens, values)), plans)
        logits = self._adjust(logits, plans, sequences, counts)
        values, tokens = likeliest_token(logits)
        if any(plan.draws for plan in plans):
            self._draw(logits, tokens, plans, counts)
        rows = [i for i, plan in enumerate(plans) if plan.logprobs is not None]
        if not rows:
            return Sampling(tokens, Readback((tokens, values)), plans)
        width = max(plan.logprobs or 0 for plan in plans)
        index = torch.tensor(rows, device=self._device)
        measured = measure(logits[index], tokens[index], width)
        return Sampling(
            tokens, Readback((tokens, values, measured)), plans, width=measured.shape[1]
        )

    def start_greedy(
        self,
        choose: Callable[[], tuple[Tensor, Tensor]],
        sequences: Sequence[SampledSequence],
        *,
        unknown: int = 0,
    ) -> Sampling | None:
        """Take the likeliest tokens from elsewhere, if nothing else counts for these sequences.

        Args:
            choose: gives [N] int64 tokens, and tokens and their logits as [2, N] float64.
            sequences: N of them.
            unknown: as for `start`.

        Returns:
            None when a sequence needs more than the likeliest token; `choose` wasn't called.
        """
        plans = [self._plan(sequence) for sequence in sequences]
        if not _all_plain(plans, [s.num_output_tokens + unknown for s in sequences]):
            return None
        tokens, numbers = choose()
        return Sampling(tokens, Readback((numbers,)), plans)

    def _plan(self, sequence: SampledSequence) -> _Plan:
        request = sequence.request
        plan = self._plans.get(request.request_id)
        if plan is None or plan.request is not request:
            self.forget(request.request_id)
            plan = _Plan(request, self.vocab_size)
            if plan.draws:
                plan.key = self._key(request.params.seed)
            self._plans[request.request_id] = plan
        return plan

    def _key(self, seed: int | None) -> int:
        """Return the key of a sequence's draws; seeded and unseeded ones never share one."""
        if seed is not None:
            return derive(seed, 0)
        self._num_unseeded += 1
        return derive(self._seed, 1, self._num_unseeded)

    def _adjust(
        self,
        logits: Tensor,
        plans: Sequence[_Plan],
        sequences: Sequence[SampledSequence],
        counts: Sequence[int],
    ) -> Tensor:
        """Return float32 logits with bias, penalties and forbidden tokens; a copy if changed."""
        adjusted = logits.float()
        if not any(plan.adjusts for plan in plans):
            return adjusted
        if logits.dtype == torch.float32:
            adjusted = adjusted.clone()
        biased = [(i, plan.bias) for i, plan in enumerate(plans) if plan.bias is not None]
        if biased:
            rows, ids = self._positions([(i, ids) for i, (ids, _) in biased])
            values = torch.from_numpy(np.concatenate([values for _, (_, values) in biased]))
            adjusted.index_put_((rows, ids), values.to(self._device), accumulate=True)
        penalised = [i for i, plan in enumerate(plans) if plan.penalised]
        if penalised:
            self._penalties.apply(adjusted, penalised, [sequences[i] for i in penalised])
        forbidden = [
            (i, plan.forbidden)
            for i, (plan, count) in enumerate(zip(plans, counts, strict=True))
            if plan.forbidden is not None and count < plan.request.params.min_tokens
        ]
        if forbidden:
            minus_infinity = torch.full((), -math.inf, device=self._device)
            adjusted.index_put_(self._positions(forbidden), minus_infinity)
        return adjusted

    def _positions(self, ids_of_rows: list[tuple[int, Any]]) -> tuple[Tensor, Tensor]:
        """Return the row and the column of every id, on the device."""
        rows = np.repeat([i for i, _ in ids_of_rows], [len(ids) for _, ids in ids_of_rows])
        both = np.stack([rows, np.concatenate([ids for _, ids in ids_of_rows])])
        where = torch.from_numpy(both).to(self._device)
        return where[0], where[1]

    def _draw(
        self,
        logits: Tensor,
        tokens: Tensor,
        plans: Sequence[_Plan],
        counts: Sequence[int],
    ) -> None:
        """Replace the greedy tokens of the rows that draw."""
        rows = [i for i, plan in enumerate(plans) if plan.draws]
        numbers = uniforms([plans[i].key for i in rows], [counts[i] for i in rows])
        settings = [
            DrawSettings(*plans[i].filters, uniform)
            for i, uniform in zip(rows, numbers.tolist(), strict=True)
        ]
        if len(rows) == len(plans):
            tokens.copy_(draw(logits, settings))
        else:
            index = torch.tensor(rows, device=self._device)
            tokens[index] = draw(logits[index], settings)

    @torch.inference_mode()
    def prompt_logprobs(
        self, logits: Tensor, target_ids: list[int], k: int
    ) -> list[PositionLogprobs]:
        """Return the log-probabilities of prompt tokens, under the model's own distribution.

        Args:
            logits: [M, V] of any floating dtype; row i predicts target_ids[i].
            target_ids: M tokens.
            k: how many of the likeliest to add at each position.
        """
        result: list[PositionLogprobs] = []
        targets = torch.tensor(target_ids).to(self._device)
        for start in range(0, len(target_ids), _PROMPT_ROWS):
            part = slice(start, start + _PROMPT_ROWS)
            rows = measure(logits[part, : self.vocab_size].float(), targets[part], k).tolist()
            result += [read(row, id_, k) for row, id_ in zip(rows, target_ids[part], strict=True)]
        return result


@dataclass(frozen=True)
class Sampling:
    """Tokens that are being chosen.

    Attributes:
        tokens: [N] int64 on the device, in the order of the rows; usable at once by what runs
            after it there.
    """

    tokens: Tensor
    _readback: Readback
    _plans: list[_Plan]
    width: int = 0
    """Numbers of each row that has log-probabilities."""

    def read(self) -> list[SampledToken]:
        """Wait for the tokens and return them."""
        return _read(self._readback.read(), self._plans, self.width)


class _Plan:
    """What a request's parameters mean for its rows, worked out once."""

    __slots__ = (
        "adjusts",
        "bias",
        "draws",
        "filters",
        "forbidden",
        "key",
        "logprobs",
        "penalised",
        "plain_from",
        "request",
    )

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        p = request.params
        self.request = request
        self.draws = not p.greedy
        self.key = 0
        top_k = p.top_k if 0 < p.top_k < vocab_size else vocab_size
        self.filters = (p.temperature, top_k, p.top_p, p.min_p)
        self.logprobs = p.logprobs
        self.penalised = (
            p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
        )
        bias = {i: value for i, value in (p.logit_bias or {}).items() if i < vocab_size}
        self.bias = None
        if bias:
            self.bias = (np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32))
        ends = {*p.stop_token_ids, *(() if p.ignore_eos else request.end_token_ids)}
        forbidden = [i for i in sorted(ends) if i < vocab_size] if p.min_tokens else []
        self.forbidden = np.array(forbidden, np.int64) if forbidden else None
        self.adjusts = bool(bias or self.penalised or forbidden)
        # From this many output tokens on, the largest logit is all that counts.
        self.plain_from = p.min_tokens if forbidden else 0
        if self.draws or bias or self.penalised or self.logprobs is not None:
            self.plain_from = sys.maxsize


def _all_plain(plans: Sequence[_Plan], counts: Sequence[int]) -> bool:
    """Say whether the largest logit is all that counts, for each sequence."""
    return all(n >= plan.plain_from for n, plan in zip(counts, plans, strict=True))


def _read(numbers: list[float], plans: Sequence[_Plan], width: int) -> list[SampledToken]:
    """Take apart what was copied: token ids, largest logits, log-probabilities."""
    count, isfinite = len(plans), math.isfinite
    start = 2 * count
    result = []
    for row, plan in enumerate(plans):
        token, largest = int(numbers[row]), numbers[count + row]
        if plan.logprobs is not None:
            measured = numbers[start : start + width]
            start += width
        if not isfinite(largest):
            result.append(SampledToken(token, error=_error(largest)))
        elif plan.logprobs is not None:
            result.append(SampledToken(token, read(measured, token, plan.logprobs)))
        else:
            result.append(SampledToken(token))
    return result


def _error(largest: float) -> str:
    if largest == -math.inf:
        return (
            "no token can be chosen: every one is forbidden (min_tokens, or the model's logits "
            "are all minus infinity)"
        )
    kind = "NaN" if math.isnan(largest) else "infinite"
    return (
        f"no token can be chosen: the model's logits are {kind}; its numbers overflow in this "
        "dtype (try --dtype float32) or its weights are damaged"
    )
