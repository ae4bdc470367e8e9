"""The loader that reads no weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.errors import ModelError
from engine.events import EventBus, PhaseAdvanced
from engine.weights import FolderWeightsPlugin

if TYPE_CHECKING:
    from engine.models import CausalLM

_STD = 0.02
"""Of matrices and biases, unless the configuration has an `initializer_range`."""
_NORM_STD = 0.05
"""Of the gains of norms, around one."""


class DummyWeights(FolderWeightsPlugin):
    """Fills a model with small random numbers, where it is, without reading a weight.

    For benchmarks and tests of a model's shape: the text is noise, the work is the same.
    """

    NAME = "dummy"
    SUMMARY = "random weights from the seed; needs config.json only, for benchmarks"

    @classmethod
    def handles(cls, path: Path) -> bool:
        """Never: noise is served only when it is asked for by name."""
        del path
        return False

    def config(self, path: Path) -> Any:
        """Read config.json.

        Raises:
            ModelError: the model is a file, or its configuration is invalid.
        """
        if not path.is_dir():
            raise ModelError(
                f"{path}: is no folder; --load-format dummy needs a folder with a config.json"
            )
        return super().config(path)

    def tensors(self, path: Path, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Refuse: there is no checkpoint; `load` makes the numbers in the parameters."""
        raise ModelError(f"{path}: dummy weights come from no checkpoint, so it has no tensors")

    def load(self, model: CausalLM, path: Path, config: Any, events: EventBus, seed: int) -> None:
        """Fill every parameter in place, on its device, from one generator.

        Gains of norms are near one, everything else is normal with a standard deviation of
        `initializer_range` (0.02), so that activations stay finite at any depth. Equal seeds give
        equal weights on one kind of device and dtype.
        """
        del path
        text = config.get_text_config(decoder=True)
        std = float(getattr(text, "initializer_range", None) or _STD)
        parameters = list(model.named_parameters())
        generators: dict[torch.device, torch.Generator] = {}
        with events.phase("load", len(parameters)), torch.no_grad():
            for done, (name, parameter) in enumerate(parameters, start=1):
                device = parameter.device
                if device not in generators:
                    generators[device] = torch.Generator(device).manual_seed(seed % 2**63)
                mean, spread = (1.0, _NORM_STD) if _is_gain(name, parameter) else (0.0, std)
                parameter.normal_(mean, spread, generator=generators[device])
                events.emit(PhaseAdvanced("load", done, len(parameters), name))


def _is_gain(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 1 and name.endswith("weight")
