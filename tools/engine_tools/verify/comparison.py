"""Compares answers with the reference's, by what the plugins in force declare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.plugin import Numerics
from engine_tools.verify.answers import Answer, Answers
from engine_tools.verify.workload import Batch

BOUNDS = {"float32": 1e-2, "bfloat16": 0.25, "float16": 0.05}
"""Largest difference of a log-probability that rounding explains, by dtype.

Compiled code of the demo model (30 layers, float32) is up to 0.002 from its Python on random
prompts of 500 tokens. On the shapes of Llama-3.2-1B and Qwen3-0.6B with random weights, bfloat16
is up to 0.13 and 0.04 from float32; two bfloat16 engines may be that far apart on both sides.
"""


Kind = Literal["token", "probability", "error", "repeat"]


class _Fault(NamedTuple):
    kind: Kind
    position: int
    what: str


@dataclass(frozen=True)
class Divergence:
    """The first place where two answers part.

    Attributes:
        kind: another token, another probability, an error, or other bits at a repetition.
        batch: its name.
        prompt: which prompt of it, from 0.
        position: which new token, from 0; -1 when the prompt's own probabilities differ.
        what: the difference, in words.
        token_ids: the prompt and the tokens before the position, to come there again.
    """

    kind: Kind
    batch: str
    prompt: int
    position: int
    what: str
    token_ids: tuple[int, ...]

    def __str__(self) -> str:
        place = f"token {self.position}" if self.position >= 0 else "its probabilities"
        return f"batch {self.batch!r}, prompt {self.prompt}, {place}: {self.what}"


@dataclass(frozen=True)
class Comparison:
    """What came of comparing all answers.

    Attributes:
        tokens: new tokens compared; each prompt is answered twice.
        differing: tokens that differ from the reference's, the first of each answer only.
        near_ties: those of them where the reference itself could hardly decide.
        deviation: the largest difference of a log-probability.
        bound: the largest one that is allowed.
        divergences: what isn't allowed, in the order of the workload.
    """

    tokens: int
    differing: int
    near_ties: int
    deviation: float
    bound: float
    divergences: tuple[Divergence, ...]


def compare(
    batches: Sequence[Batch],
    reference: Answers,
    found: Answers,
    *,
    numerics: Numerics,
    dtype: str,
) -> Comparison:
    """Compare the answers of two engines.

    Where the declared class is `bitwise`, everything must be equal. Otherwise log-probabilities may
    differ by `BOUNDS[dtype]`, and tokens only where the reference's two likeliest are no farther
    apart than twice that; in float32 that is next to nowhere.
    """
    bound = 0.0 if numerics is Numerics.BITWISE else BOUNDS[dtype]
    judge = _Judge(bound)
    for batch in batches:
        for index, (a, b) in enumerate(zip(reference[batch.name], found[batch.name], strict=True)):
            judge.see(batch, index, a, b)
        if batch.repeats:
            judge.repeated(batch, found[batch.repeats], found[batch.name])
    return judge.verdict()


class _Judge:
    """Goes through pairs of answers."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._tokens = self._differing = self._near_ties = 0
        self._deviation = 0.0
        self._divergences: list[Divergence] = []

    def see(self, batch: Batch, index: int, wanted: Answer, found: Answer) -> None:
        first: dict[Kind, _Fault] = {}
        for fault in self._faults(wanted, found):
            first.setdefault(fault.kind, fault)
        for kind, position, what in sorted(first.values(), key=lambda fault: fault.position):
            before = batch.prompts[index] + wanted.tokens[: max(0, position)]
            self._divergences.append(Divergence(kind, batch.name, index, position, what, before))

    def repeated(self, batch: Batch, first: Sequence[Answer], second: Sequence[Answer]) -> None:
        """The same batch gives the same bits, whatever ran between."""
        for index, (a, b) in enumerate(zip(first, second, strict=True)):
            if a != b:
                what = f"batch {batch.repeats!r} gave something else when it came again"
                prompt = batch.prompts[index]
                self._divergences.append(Divergence("repeat", batch.name, index, -1, what, prompt))

    def _faults(self, wanted: Answer, found: Answer) -> Iterator[_Fault]:
        """Yield what is wrong with an answer, and at which token."""
        if found.error:
            yield _Fault("error", len(found.tokens), f"it failed: {found.error}")
        for a, b in zip(wanted.prompt_logprobs, found.prompt_logprobs, strict=False):
            if not self._near(a, b):
                yield _Fault("probability", -1, _values(a, b))
        yield from self._token_faults(wanted, wanted.checked, found.checked)
        if wanted.tokens != wanted.checked:
            what = "the reference itself answers otherwise when asked for probabilities"
            yield _Fault("token", 0, what)
        for position, (token, value, other, seen) in enumerate(
            zip(wanted.checked, wanted.logprobs, found.checked, found.logprobs, strict=False)
        ):
            if token != other:
                break
            if not self._near(value, seen):
                yield _Fault("probability", position, _values(value, seen))
        yield from self._token_faults(wanted, wanted.tokens, found.tokens)

    def _token_faults(
        self, wanted: Answer, tokens: Sequence[int], others: Sequence[int]
    ) -> Iterator[_Fault]:
        self._tokens += len(tokens)
        if len(tokens) != len(others):
            what = f"{len(others)} tokens instead of {len(tokens)}"
            yield _Fault("token", min(len(tokens), len(others)), what)
        for position, (token, other) in enumerate(zip(tokens, others, strict=False)):
            if token == other:
                continue
            self._differing += 1
            margin = wanted.margins[position]
            if margin <= 2 * self._bound:
                self._near_ties += 1
            else:
                what = f"token {other}, the reference's is {token} ({margin:.3g} ahead)"
                yield _Fault("token", position, what)
            return

    def _near(self, a: float, b: float) -> bool:
        difference = math.inf if math.isnan(b) and not math.isnan(a) else abs(a - b)
        if math.isnan(difference):
            return True  # NaN in both
        self._deviation = max(self._deviation, difference)
        return difference <= self._bound

    def verdict(self) -> Comparison:
        return Comparison(
            self._tokens,
            self._differing,
            self._near_ties,
            self._deviation,
            self._bound,
            tuple(self._divergences),
        )


def _values(wanted: float, found: float) -> str:
    return f"log-probability {found:.6g}, the reference's is {wanted:.6g}"
