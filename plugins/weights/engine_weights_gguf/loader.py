"""The loader of GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.weights import WeightsPlugin
from engine_weights_gguf.architecture import (
    read_config,
    read_family,
    to_half_split,
    transformers_name,
)
from engine_weights_gguf.dequantize import dequantize
from engine_weights_gguf.reader import GGUFFile

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

_SUFFIX = ".gguf"


class GGUFWeights(WeightsPlugin):
    """Unpacks one GGUF file, tensor by tensor, to float32 under transformers' names."""

    NAME = "gguf"
    SUMMARY = "one GGUF file (llama, qwen2, qwen3), any quantisation, unpacked as it is loaded"

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self._opened: GGUFFile | None = None

    @classmethod
    def handles(cls, path: Path) -> bool:
        """Take a GGUF file, and a folder that has one and no safetensors."""
        if path.is_file():
            return path.suffix.lower() == _SUFFIX
        return len(_files(path)) == 1 and not any(path.glob("*.safetensors"))

    def config(self, path: Path) -> Any:
        """Make the configuration that the file's metadata describe; see `architecture`."""
        return read_config(self._open(path))

    def tokenizer(self, path: Path) -> Any:
        """Build the tokenizer out of the file's vocabulary; see `tokenizer`."""
        from engine_weights_gguf.tokenizer import build_tokenizer

        return build_tokenizer(self._open(path))

    def num_tensors(self, path: Path) -> int:
        """Count the file's parameters."""
        return sum(transformers_name(name) is not None for name in self._open(path).tensors)

    def tensors(self, path: Path, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield float32 tensors, q and k in transformers' rope order."""
        import torch

        file = self._open(path)
        interleaved = read_family(file).interleaved
        for info in file.tensors.values():
            name = transformers_name(info.name)
            if name is None:
                continue
            values = dequantize(file.raw(info), info.type).reshape(info.shape)
            if interleaved:
                values = to_half_split(name, values, config)
            yield name, torch.from_numpy(values)

    def _open(self, path: Path) -> GGUFFile:
        if path.is_dir():
            files = _files(path)
            if len(files) != 1:
                raise ModelError(
                    f"{path}: holds {len(files)} {_SUFFIX} files; pass the path of one"
                )
            path = files[0]
        if self._opened is None or self._opened.path != path:
            self._opened = GGUFFile(path)
        return self._opened


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() == _SUFFIX)
