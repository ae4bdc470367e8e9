"""Reads the headers of safetensors files without torch, which the loader would bring."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.model_folder import read_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Headers:
    """What the headers of a checkpoint say.

    Attributes:
        files: how many there are.
        tensors: how many they hold.
        elements: numbers in all tensors together.
        bytes: size of the files.
    """

    files: int
    tensors: int
    elements: int
    bytes: int


def read_headers(folder: Path) -> Headers:
    """Read every header of a model folder and compare it with the index.

    Raises:
        ModelError: a file is missing or truncated, or lacks a tensor that the index places in it.
    """
    wanted = _wanted(folder)
    tensors = elements = size = 0
    for file, names in wanted.items():
        path = folder / file
        if not path.is_file():
            raise ModelError(f"{path}: is missing, though {_INDEX} names it; copy it too")
        shapes = _shapes(path)
        if missing := names - shapes.keys():
            raise ModelError(
                f"{path}: lacks {min(missing)!r}, which {_INDEX} places in it; copy it again"
            )
        tensors += len(shapes)
        elements += sum(shapes.values())
        size += path.stat().st_size
    return Headers(len(wanted), tensors, elements, size)


def _wanted(folder: Path) -> dict[str, set[str]]:
    """Return the files of a checkpoint and the tensors that each must hold, by the index."""
    if (folder / _SINGLE).is_file():
        return {_SINGLE: set()}
    if not (folder / _INDEX).is_file():
        files = sorted(path.name for path in folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder}: holds no safetensors files; copy the weights into it")
        return {name: set() for name in files}
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / _INDEX}: has no weight_map; copy the file again")
    wanted: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        wanted.setdefault(str(file), set()).add(name)
    return wanted


def _shapes(path: Path) -> dict[str, int]:
    """Return the number of elements of each tensor in a file."""
    try:
        with safe_open(path, framework="numpy") as opened:
            handle: Any = opened
            names: list[str] = handle.keys()
            return {name: prod(handle.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        raise ModelError(
            f"{path}: is truncated or no safetensors file ({error}); copy it again"
        ) from error
