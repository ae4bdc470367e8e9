"""Which token counts get a graph: what the user named, or what a policy proposes."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ResolutionError
from engine.strategies import CaptureSizePolicy

_DEFAULT_CEILING = 512
"""Largest size recorded unless the user asks for more: above it a step is bound by the device,
so that launching it costs nothing that a graph would save."""


@dataclass(frozen=True)
class CaptureSizes:
    """The sizes in force and why."""

    sizes: tuple[int, ...]
    reason: str


def resolve_capture_sizes(
    asked: tuple[int, ...] | None,
    max_size: int | None,
    *,
    max_num_seqs: int,
    max_num_tokens: int,
    policy: CaptureSizePolicy,
) -> CaptureSizes:
    """Return the token counts to record.

    A user's list is sorted and freed of duplicates and otherwise taken as it is; a size that
    could never be used is an error, not a silently shorter list.

    Raises:
        ResolutionError: a size is impossible, the list is empty, or list and maximum disagree.
    """
    name = "cudagraph_capture_sizes"
    if max_size is not None and max_size > max_num_tokens:
        raise ResolutionError(
            f"max_cudagraph_capture_size={max_size}: no step is larger than "
            f"max_num_batched_tokens={max_num_tokens}; lower the one or raise the other"
        )
    if asked is None:
        top = max_size or min(max(_DEFAULT_CEILING, max_num_seqs), max_num_tokens)
        limits = {
            "max_num_seqs": max_num_seqs,
            "max_num_tokens": max_num_tokens,
            "max_size": top,
        }
        proposed = tuple(policy.sizes(limits))
        if not proposed or list(proposed) != sorted({n for n in proposed if 1 <= n <= top}):
            raise ResolutionError(
                f"capture_size_policy={policy.NAME}: it proposes {list(proposed)}, which isn't a "
                f"rising list of numbers from 1 to {top}; name {name} or choose another policy"
            )
        return CaptureSizes(proposed, f"policy {policy.NAME}: {policy.SUMMARY}")
    if not asked:
        raise ResolutionError(
            f"{name}=[]: a graph mode that records needs at least one size; name some, leave the "
            "setting out for the default sizes, or choose a graph mode that records nothing"
        )
    if bad := [size for size in asked if size < 1]:
        raise ResolutionError(f"{name}: {bad[0]} is no number of tokens; sizes start at 1")
    if bad := [size for size in asked if size > max_num_tokens]:
        raise ResolutionError(
            f"{name}: {bad[0]} can never be used, since no step is larger than "
            f"max_num_batched_tokens={max_num_tokens}; drop it or raise that"
        )
    if max_size is not None and max(asked) != max_size:
        raise ResolutionError(
            f"{name} ends at {max(asked)} but max_cudagraph_capture_size={max_size}; give one"
        )
    cleaned = tuple(sorted(set(asked)))
    tidy = cleaned == asked
    return CaptureSizes(cleaned, "asked for" if tidy else "asked for; sorted, duplicates dropped")
