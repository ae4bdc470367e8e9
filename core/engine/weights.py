"""The contract of a weight loader: where a model's config, tokenizer and tensors come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.events import EventBus
from engine.plugin import Plugin

if TYPE_CHECKING:
    import torch

    from engine.models import CausalLM


class WeightsPlugin(Plugin):
    """Reads one format of model folder or file. Never downloads."""

    @classmethod
    @abstractmethod
    def handles(cls, path: Path) -> bool:
        """Say whether `path` (it exists) is in this format; used when no format is named."""

    @abstractmethod
    def config(self, path: Path) -> Any:
        """Return the model's configuration as a transformers `PretrainedConfig`.

        Raises:
            ModelError: names the file and what is wrong with it.
        """

    @abstractmethod
    def tokenizer(self, path: Path) -> Any:
        """Return a transformers fast tokenizer with its chat template, or None if there is none.

        Raises:
            ModelError: names the file and what is wrong with it.
        """

    @abstractmethod
    def tensors(self, path: Path, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor of the checkpoint under its transformers name, on the CPU.

        One at a time, so that the whole checkpoint is never in memory twice.

        Raises:
            ModelError: a file is unreadable, truncated or inconsistent; names it.
        """

    def load(self, model: CausalLM, path: Path, config: Any, events: EventBus, seed: int) -> None:
        """Fill the model's parameters. Formats that have no tensors override this."""
        del seed
        with events.phase("load"):
            model.load_weights(self.tensors(path, config))
