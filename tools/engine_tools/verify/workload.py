"""Batches that reach every recorded size and its neighbours, decode, prefill and mixtures."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Prompts that are answered together.

    Attributes:
        name: what it is for.
        prompts: token ids.
        new: tokens to decode, for each prompt.
        repeats: the name of the batch whose answers must come again bit by bit; empty if none.
    """

    name: str
    prompts: tuple[Prompt, ...]
    new: tuple[int, ...]
    repeats: str = ""


@dataclass(frozen=True)
class Limits:
    """What a step and a sequence may be.

    Attributes:
        vocab_size: token ids are below it.
        max_num_seqs: sequences in a step.
        max_num_batched_tokens: tokens in a step.
        max_model_len: tokens of a sequence.
        sizes: token counts that graphs were recorded for, or code compiled for.
    """

    vocab_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    sizes: tuple[int, ...] = ()


def workload(limits: Limits, seed: int, prompts: Sequence[Prompt] = ()) -> list[Batch]:
    """Return the batches of one verification.

    Args:
        limits: of the engine.
        seed: of the random prompts.
        prompts: the user's own, answered first.
    """
    draw = _Draw(limits, random.Random(seed))  # noqa: S311 - prompts, no secrets
    batches = [Batch("your prompts", tuple(prompts), (16,) * len(prompts))] if prompts else []
    first, second = draw.batch("A", 4), draw.batch("B", 4)
    again = Batch("A again", first.prompts, first.new, repeats="A")
    batches += [first, second, again]
    batches += draw.prefills()
    batches += draw.decode_sizes()
    batches.append(draw.mixed())
    return batches


class _Draw:
    """Draws random batches within limits."""

    def __init__(self, limits: Limits, rng: random.Random) -> None:
        self._limits, self._rng = limits, rng
        self._room = max(1, limits.max_model_len - 1)

    def prompt(self, length: int) -> Prompt:
        return tuple(self._rng.randrange(self._limits.vocab_size) for _ in range(length))

    def batch(self, name: str, count: int) -> Batch:
        count = min(count, self._limits.max_num_seqs)
        lengths = [self._rng.randint(1, min(48, self._room)) for _ in range(count)]
        return self._made(name, lengths, 12)

    def _made(self, name: str, lengths: Sequence[int], new: int) -> Batch:
        prompts = tuple(self.prompt(length) for length in lengths)
        return Batch(name, prompts, tuple(min(new, self._room + 1 - n) for n in lengths))

    def prefills(self) -> Iterator[Batch]:
        """Yield one prompt for each size and its neighbours: steps of just as many tokens."""
        most = min(self._limits.max_num_batched_tokens, self._room)
        for length in neighbours(self._limits.sizes or (1, 2, 7), most):
            yield self._made(f"prefill of {length}", [length], 1)

    def decode_sizes(self) -> Iterator[Batch]:
        """Yield one batch whose sequences end in turns, so that decode runs at each size.

        With sizes 4 and 2 and limits that allow it: five sequences for two steps, then four, three,
        two and one.
        """
        most = min(self._limits.max_num_seqs, self._limits.max_num_batched_tokens)
        counts = neighbours(self._limits.sizes or (1, 2, 7), most)[::-1]
        ends = [0] * counts[0]
        for turn, (count, smaller) in enumerate(pairwise([*counts, 0]), start=1):
            for index in range(smaller, count):
                # One token comes of the prompt; each size then decodes twice.
                ends[index] = 1 + 2 * turn
        prompts = tuple(self.prompt(self._rng.randint(1, min(8, self._room))) for _ in ends)
        new = tuple(
            min(end, self._room + 1 - len(prompt))
            for end, prompt in zip(ends, prompts, strict=True)
        )
        yield Batch(f"decode of {', '.join(map(str, counts))}", prompts, new)

    def mixed(self) -> Batch:
        """Return more prompts than run at once, some longer than a step: prefill beside decode."""
        seqs = min(self._limits.max_num_seqs, 8)
        longest = min(self._room, self._limits.max_num_batched_tokens + 16, 512)
        lengths = [self._rng.randint(1, max(1, longest)) for _ in range(2 * seqs)]
        prompts = tuple(self.prompt(length) for length in lengths)
        new = tuple(min(self._rng.randint(2, 16), self._room + 1 - length) for length in lengths)
        return Batch("prefill beside decode", prompts, new)


def neighbours(sizes: Sequence[int], most: int) -> list[int]:
    """Return sizes with those one below and above, ascending, from 1 to `most`."""
    near = {size + step for size in sizes for step in (-1, 0, 1)}
    return sorted(size for size in {*near, 1} if 1 <= size <= most)
