"""The contract of a model implementation.

Shapes: T tokens of a step, N rows that need logits, H hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

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
