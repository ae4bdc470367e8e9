"""The contract of a weight loader: where a model's config, tokenizer and tensors come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import model_folder
from engine.events import EventBus, PhaseAdvanced
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

        One at a time, so that the whole checkpoint is never in memory twice. A tensor may be a
        read-only view of the file: copy from it, never write to it.

        Raises:
            ModelError: a file is unreadable, truncated or inconsistent; names it.
        """

    def num_tensors(self, path: Path) -> int | None:
        """Return how many tensors the checkpoint holds, for a progress bar; None if unknown."""
        del path
        return None

    def end_token_ids(self, path: Path, config: Any, tokenizer: Any) -> list[int]:
        """Return the tokens that end a generation, ascending.

        Every one that the configuration, the generation configuration or the tokenizer (None if
        there is none) names: the three often differ, and each is meant.

        Raises:
            ModelError: a file that names them is invalid.
        """
        text = config.get_text_config(decoder=True)
        found = set(model_folder.token_ids(getattr(text, "eos_token_id", None)))
        if path.is_dir():
            found.update(model_folder.generation_end_token_ids(path))
        if tokenizer is not None:
            found.update(model_folder.token_ids(tokenizer.eos_token_id))
        return sorted(found)

    def load(self, model: CausalLM, path: Path, config: Any, events: EventBus, seed: int) -> None:
        """Fill the model's parameters. Formats that have no tensors override this."""
        del seed
        total = self.num_tensors(path)
        with events.phase("load", total):
            model.load_weights(_reported(self.tensors(path, config), events, total))


class FolderWeightsPlugin(WeightsPlugin):
    """A loader whose configuration and tokenizer lie beside the weights as transformers' do."""

    def config(self, path: Path) -> Any:
        """Read config.json."""
        return model_folder.read_config(path)

    def tokenizer(self, path: Path) -> Any:
        """Read the tokenizer's files, if the folder has any."""
        return model_folder.read_tokenizer(path)


def _reported(
    tensors: Iterable[tuple[str, torch.Tensor]], events: EventBus, total: int | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors and report each as one step once it has been consumed."""
    for done, (name, tensor) in enumerate(tensors, start=1):
        yield name, tensor
        events.emit(PhaseAdvanced("load", done, total, name))
