"""Tells two tensors apart as a numerics class allows, and says where they differ first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.plugin import Numerics
from engine.testing.conformance.suite import ask

TOLERANCES = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (6e-3, 6e-3),
    torch.bfloat16: (3e-2, 3e-2),
}
"""Relative and absolute tolerance of `Numerics.TOLERANCE`, by dtype."""


def first_difference(
    got: torch.Tensor, wanted: torch.Tensor, numerics: Numerics = Numerics.TOLERANCE
) -> str:
    """Say where two tensors differ first; empty when the numerics class allows what differs.

    Args:
        got: what a plugin gave.
        wanted: what plain eager execution gives.
        numerics: `BITWISE` allows nothing.
    """
    if got.shape != wanted.shape:
        return f"shape {tuple(got.shape)} where {tuple(wanted.shape)} is asked"
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype} where {wanted.dtype} is asked"
    if numerics is Numerics.BITWISE or not got.dtype.is_floating_point:
        wrong = (got != wanted) & ~(got.isnan() & wanted.isnan())
    else:
        rtol, atol = TOLERANCES[got.dtype]
        wrong = ~torch.isclose(got, wanted, rtol=rtol, atol=atol, equal_nan=True)
    places = wrong.nonzero()
    if not len(places):
        return ""
    at = tuple(places[0].tolist())
    largest = (got.double() - wanted.double()).abs().max().item()
    return (
        f"{len(places)} of {got.numel()} elements of a {tuple(got.shape)} {got.dtype} tensor "
        f"differ, first at {list(at)}: {got[at].item()!r} where {wanted[at].item()!r} is asked "
        f"(largest difference {largest:.3g})"
    )


def ask_equal(
    got: torch.Tensor,
    wanted: torch.Tensor,
    what: str,
    numerics: Numerics = Numerics.TOLERANCE,
) -> None:
    """Go on if two tensors are equal within a numerics class.

    Raises:
        ContractError: says where they differ first.
    """
    difference = first_difference(got, wanted, numerics)
    ask(not difference, f"{what}: {difference}")


def ask_all_equal(
    got: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    what: str,
    numerics: Numerics = Numerics.TOLERANCE,
) -> None:
    """Go on if two lists of tensors are equal, one by one.

    Raises:
        ContractError: says which one differs, and where.
    """
    ask(len(got) == len(wanted), f"{what}: {len(got)} tensors where {len(wanted)} are asked")
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        ask_equal(one, other, f"{what}, part {index}", numerics)
