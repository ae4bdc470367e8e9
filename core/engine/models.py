"""The contract of a model implementation.

Shapes: T tokens of a step, N rows that need logits, H hidden size, V vocabulary.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from engine.errors import ModelError
from engine.plugin import Plugin

if TYPE_CHECKING:
    from engine.attention import AttentionSpec


class CausalLM(nn.Module, ABC):
    """A decoder that runs over flat tokens.

    Its Python must not depend on the batch (no branch on a shape or a value), and all attention
    goes through `engine.ops.attention`, so that any compile and graph strategy fits it.
    """

    attention_specs: tuple[AttentionSpec, ...]
    """What each attention layer asks for; the index is the layer number given to the operator."""

    @abstractmethod
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H], after the final norm, from ids [T] and positions [T] (int64)."""

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V] in the model's dtype from hidden [N, H]."""

    @abstractmethod
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy a checkpoint's tensors, named as transformers names them, into the parameters.

        Raises:
            ModelError: a tensor is missing, unknown or of the wrong shape; names it.
        """


class ModelPlugin(Plugin):
    """Builds a `CausalLM` for the configurations it handles."""

    PRIORITY: ClassVar[int] = 0
    """When the user names no implementation, the highest that handles the model is taken."""

    @classmethod
    @abstractmethod
    def handles(cls, config: Any) -> bool:
        """Say whether this implementation knows the transformers configuration `config`."""

    @abstractmethod
    def build(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> CausalLM:
        """Build the module with uninitialised parameters of `dtype` on `device`."""


DERIVED = (r"rotary_emb\.inv_freq$",)
"""Patterns of names that old checkpoints carry although they follow from the configuration."""

_LISTED = 5


@torch.no_grad()
def fill(
    targets: Mapping[str, torch.Tensor],
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    ignored: Sequence[str] = DERIVED,
    remedy: str = "check that both belong to the same model",
) -> None:
    """Copy each tensor into the target of its name; what `load_weights` usually does.

    Every target must be filled, and every tensor must have one.

    Args:
        targets: by checkpoint name; two names may share one target (tied weights), then either
            fills it, and both must agree.
        weights: names and tensors, of any dtype, on any device; read one by one.
        ignored: regular expressions; an unknown tensor whose name has one of them is passed over.
        remedy: what the user can do when the two don't fit.

    Raises:
        ModelError: a tensor is missing, unknown, of the wrong shape, or contradicts the one that
            it is tied to; names it.
    """
    filled: dict[int, str] = {}
    unknown: list[str] = []
    for name, tensor in weights:
        target = targets.get(name)
        if target is None:
            if not any(re.search(pattern, name) for pattern in ignored):
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
        raise ModelError(f"{_misfit(missing, unknown)}; {remedy}.")


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
    return f"the checkpoint doesn't fit config.json: it {' and '.join(problems)}"
