"""The loader of safetensors checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from engine.errors import ModelError
from engine.weights import FolderWeightsPlugin
from engine_weights_safetensors.checkpoint import find_shards, open_shard

if TYPE_CHECKING:
    import torch


class SafetensorsWeights(FolderWeightsPlugin):
    """Streams tensors out of memory-mapped files, in the order in which they lie there."""

    NAME = "safetensors"
    SUMMARY = "a model folder with config.json and safetensors files, one or sharded"

    @classmethod
    def handles(cls, path: Path) -> bool:
        """Any model folder of transformers' layout; one without safetensors is told so."""
        return (path / "config.json").is_file()

    def config(self, path: Path) -> Any:
        """Read config.json, and refuse early what could not be loaded later.

        Raises:
            ModelError: the configuration is invalid, the weights are missing or quantised.
        """
        if not path.is_dir():
            raise ModelError(f"{path}: is no folder; pass the folder that holds the weights")
        config = super().config(path)
        quantization = getattr(config, "quantization_config", None)
        if quantization is not None:
            method = dict(quantization).get("quant_method", "unnamed")
            raise ModelError(
                f"{path}: its weights are quantised ({method}), which isn't supported; "
                "pass the unquantised model"
            )
        find_shards(path)
        return config

    def num_tensors(self, path: Path) -> int:
        """Count the tensors in the files' headers."""
        return sum(
            len(open_shard(shard).keys()) if shard.names is None else len(shard.names)
            for shard in find_shards(path)
        )

    def tensors(self, path: Path, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield views of the mapped files; every header is checked before the first one.

        A file that shrinks while it is mapped ends the process (SIGBUS), as with any mapping.
        """
        shards = find_shards(path)
        handles = [open_shard(shard) for shard in shards]
        for shard, handle in zip(shards, handles, strict=True):
            for name in handle.offset_keys():
                if shard.names is None or name in shard.names:
                    yield name, _tensor(handle, name, shard.path)


def _tensor(handle: Any, name: str, file: Path) -> torch.Tensor:
    try:
        tensor: torch.Tensor = handle.get_tensor(name)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise ModelError(f"{file}: its tensor {name!r} cannot be read: {error}") from error
    return tensor
