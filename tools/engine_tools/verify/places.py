"""Finds where in a forward pass two engines part."""

from __future__ import annotations

from collections.abc import Sequence

from engine import LLM, SamplingParams
from engine.recording import Checkpoint, first_divergence


def look(llm: LLM, token_ids: Sequence[int]) -> list[Checkpoint]:
    """Return what break ops wrote, and the hidden states, in one pass over a prompt."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    with llm.core.watch() as passes:
        llm.generate([list(token_ids)], params, progress=False)
    # What a break op reads is another thing where a pass has fused it with its neighbours.
    points = [point for one in passes for point in one if not point.label.startswith("before")]
    return [Checkpoint(p.label, tuple(t.cpu() for t in p.tensors)) for p in points]


def first_place(
    reference: Sequence[Checkpoint], found: Sequence[Checkpoint], num_tokens: int
) -> str:
    """Say after which break op two passes over one prompt differ first; empty if nowhere."""
    unnamed = [
        [Checkpoint(f"after break op {number}", point.tensors[:1]) for number, point in numbered]
        for numbered in (enumerate(reference, 1), enumerate(found, 1))
    ]
    where = first_divergence(unnamed[0], unnamed[1], num_tokens, num_tokens)
    label, _, difference = where.partition(", tensor 0: ")
    if not difference:
        return where
    number = int(label.rpartition(" ")[2])
    if number == len(reference):
        return f"after the last break op, in the hidden states: {difference}"
    name = reference[number - 1].label.removeprefix("after ").rpartition(" #")[0]
    return (
        f"layer {number - 1}: what {name} number {number} writes, or the piece before it: "
        f"{difference}"
    )
