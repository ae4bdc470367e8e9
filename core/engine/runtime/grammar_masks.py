"""Keeps outputs within their grammars, on the device of the logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import RequestError
from engine.grammars import Grammar, Matcher
from engine.runtime.grammar_queue import Grammars
from engine.runtime.sampler import SampledSequence


class GrammarMasks:
    """Forbids what a sequence's grammar doesn't allow next.

    Args:
        grammars: computes masks.
        vocab_size: V.
        device: of the logits.
    """

    def __init__(self, grammars: Grammars, vocab_size: int, device: torch.device) -> None:
        self._grammars, self._vocab_size = grammars, vocab_size
        self._bits = torch.arange(8, dtype=torch.uint8, device=device)
        self._live: dict[str, _Progress] = {}

    def start(self, request_id: str, grammar: Grammar) -> None:
        """Constrain a sequence from now on."""
        self._live[request_id] = _Progress(grammar.matcher())

    def constrains(self, request_id: str) -> bool:
        """Say whether a sequence has a grammar: its next mask needs all its tokens on the host."""
        return request_id in self._live

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a sequence that has ended; unknown ones are ignored."""
        self._live.pop(request_id, None)

    def apply(
        self, logits: Tensor, sequences: Sequence[SampledSequence]
    ) -> tuple[Tensor, dict[str, str]]:
        """Make every forbidden token's logit minus infinity.

        Masks are computed on the host while the device is still busy with the forward pass, and
        go there packed: one bit for each token.

        Args:
            logits: [N, V or more]; may be changed.
            sequences: N of them.

        Returns:
            The logits, and by request id why a grammar can't go on.
        """
        if not self._live:
            return logits, {}
        rows, matchers, errors = self._matchers(sequences)
        if not rows:
            return logits, errors
        forbidden = self._unpack(self._grammars.fill(matchers))
        part = logits[:, : self._vocab_size]
        if len(rows) == len(sequences):
            part.masked_fill_(forbidden, -math.inf)
        else:
            index = torch.tensor(rows, device=logits.device)
            part[index] = part[index].masked_fill_(forbidden, -math.inf)
        return logits, errors

    def _matchers(
        self, sequences: Sequence[SampledSequence]
    ) -> tuple[list[int], list[Matcher], dict[str, str]]:
        """Return the constrained rows, their matchers, which have seen all tokens, and errors."""
        rows, matchers, errors = [], [], {}
        for row, sequence in enumerate(sequences):
            request_id = sequence.request.request_id
            if (progress := self._live.get(request_id)) is None:
                continue
            try:
                matchers.append(progress.catch_up(sequence))
            except RequestError as error:
                errors[request_id] = str(error)
            else:
                rows.append(row)
        return rows, matchers, errors

    def _unpack(self, mask: np.ndarray[Any, np.dtype[np.int32]]) -> Tensor:
        """Return [R, V], true where a token is forbidden, from a packed mask."""
        packed = torch.from_numpy(mask.astype("<i4", copy=False).view(np.uint8))
        packed = packed.to(self._bits.device, non_blocking=True)
        bits = (packed[:, :, None] >> self._bits) & 1
        return bits.flatten(1)[:, : self._vocab_size] == 0


class _Progress:
    """A matcher, and how many of the output's tokens it has seen."""

    __slots__ = ("matcher", "seen")

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.seen = matcher, 0

    def catch_up(self, sequence: SampledSequence) -> Matcher:
        new = sequence.num_output_tokens - self.seen
        if new:
            self.matcher.accept(sequence.token_ids[-new:])
            self.seen += new
        return self.matcher
