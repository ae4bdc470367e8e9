"""Reads the headers of safetensors files without torch, which the loader would bring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.model_folder import read_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors")


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
        return {name: set() for name in _without_index(folder)}
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / _INDEX}: has no weight_map; copy the file again")
    wanted: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        wanted.setdefault(str(file), set()).add(name)
    return wanted


def _without_index(folder: Path) -> list[str]:
    """Return the files of a checkpoint that has no index: a single one, or a numbered set."""
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: holds no safetensors files; copy the weights into it")
    numbered = [match for match in map(_SHARD.fullmatch, files) if match]
    if len(files) == 1 and not numbered:
        return files
    stems = {(match["stem"], match["count"]) for match in numbered}
    if len(numbered) < len(files) or len(stems) > 1:
        raise ModelError(
            f"{folder}: holds several safetensors files ({', '.join(files)}) and no {_INDEX} that "
            "says which are the model; copy the index too"
        )
    stem, count = stems.pop()
    wanted = [f"{stem}-{n:05d}-of-{count}.safetensors" for n in range(1, int(count) + 1)]
    if missing := sorted(set(wanted) - set(files)):
        raise ModelError(f"{folder / missing[0]}: is missing, one of {count} parts; copy it too")
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
