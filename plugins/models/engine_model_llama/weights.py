"""Copies a checkpoint into parameters, and says exactly what doesn't fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from engine.errors import ModelError

_DERIVED = (".rotary_emb.inv_freq",)
"""Ends of names that old checkpoints carry although they follow from the configuration."""

_LISTED = 5


def fill(targets: Mapping[str, torch.Tensor], weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy each tensor into the target of its name; every target must be filled.

    Args:
        targets: by checkpoint name; two names may share one target (tied weights), then either
            fills it, and both must agree.
        weights: names and tensors, of any dtype, on any device.

    Raises:
        ModelError: a tensor is missing, unknown, of the wrong shape, or contradicts the one that
            it is tied to; names it.
    """
    filled: dict[int, str] = {}
    unknown: list[str] = []
    for name, tensor in weights:
        target = targets.get(name)
        if target is None:
            if not name.endswith(_DERIVED):
                unknown.append(name)
            continue
        if tensor.shape != target.shape:
            raise ModelError(
                f"checkpoint tensor {name} has shape {list(tensor.shape)}, but config.json asks "
                f"for {list(target.shape)}; the two files don't belong together."
            )
        first = filled.setdefault(_place(target), name)
        if first == name:
            target.copy_(tensor)
        elif not torch.equal(target, tensor.to(target)):
            raise ModelError(
                f"checkpoint tensors {first} and {name} differ, but config.json ties them "
                "(tie_word_embeddings=true); set --hf-overrides '{\"tie_word_embeddings\": false}'."
            )
    missing = [name for name, target in targets.items() if _place(target) not in filled]
    if missing or unknown:
        raise ModelError(_misfit(missing, unknown))


def _place(target: torch.Tensor) -> int:
    """Identify the memory that a target fills; parts of one parameter differ."""
    return target.data_ptr()


def _misfit(missing: list[str], unknown: list[str]) -> str:
    problems = [
        f"{kind} {', '.join(names[:_LISTED])}"
        + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
        for kind, names in (("misses", missing), ("has unknown", unknown))
        if names
    ]
    return (
        f"the checkpoint doesn't fit config.json: it {' and '.join(problems)}; "
        "check that both belong to the same model, or try --model-impl transformers."
    )
