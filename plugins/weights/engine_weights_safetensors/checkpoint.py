"""Which safetensors files make up a checkpoint, and which tensors each must hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.model_folder import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_CONVERT = (
    "load it once with transformers' from_pretrained and write it with "
    "save_pretrained, which makes safetensors files"
)


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint.

    Attributes:
        path: the file.
        names: the tensors to take from it; None for all that it holds.
    """

    path: Path
    names: frozenset[str] | None = None


def find_shards(folder: Path) -> list[Shard]:
    """Return the files of a checkpoint: one file, those of an index, or a numbered set.

    Raises:
        ModelError: there are none, or one of them is missing.
    """
    if (folder / SINGLE_FILE).is_file():
        return [Shard(folder / SINGLE_FILE)]
    if (folder / INDEX_FILE).is_file():
        return _indexed(folder, folder / INDEX_FILE)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(_no_weights(folder))
    matches = [_SHARD.fullmatch(file.name) for file in files]
    numbered = [match for match in matches if match is not None]
    if len(numbered) == len(files):
        return _numbered(folder, numbered)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(
            f"{folder}: holds several safetensors files ({names}) but neither {SINGLE_FILE} nor "
            f"{INDEX_FILE}, so it is unclear which are the model; copy the index too"
        )
    return [Shard(files[0])]


def open_shard(shard: Shard) -> Any:
    """Map a file into memory and read its header.

    Raises:
        ModelError: the file is unreadable, truncated, or lacks a tensor that it must hold.
    """
    try:
        handle: Any = safe_open(shard.path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise ModelError(
            f"{shard.path}: is truncated or no safetensors file ({error}); copy it again"
        ) from error
    except OSError as error:
        raise ModelError(f"{shard.path}: cannot be read: {error}") from error
    missing = (shard.names or frozenset()) - set(handle.keys())
    if missing:
        raise ModelError(
            f"{shard.path}: lacks the tensor {min(missing)!r} that {INDEX_FILE} places in it; "
            "copy the model again"
        )
    return handle


def _indexed(folder: Path, index: Path) -> list[Shard]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: has no weight_map that says which file holds which tensor")
    by_file: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelError(f"{index}: places {name!r} in {file!r}, which is no file name")
        by_file.setdefault(file, set()).add(name)
    return _present(folder, by_file, f"named by {INDEX_FILE}")


def _numbered(folder: Path, found: list[re.Match[str]]) -> list[Shard]:
    """Take a complete set `stem-00001-of-0000n` without an index."""
    first = found[0]
    if len({(match["stem"], match["count"]) for match in found}) > 1:
        raise ModelError(f"{folder}: holds shards of several checkpoints and no {INDEX_FILE}")
    count = int(first["count"])
    names = [
        f"{first['stem']}-{n:05d}-of-{first['count']}.safetensors" for n in range(1, count + 1)
    ]
    return _present(folder, dict.fromkeys(names), f"one of {count} shards")


def _present(folder: Path, files: Mapping[str, AbstractSet[str] | None], why: str) -> list[Shard]:
    missing = sorted(file for file in files if not (folder / file).is_file())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{folder / missing[0]}: no such file{more}, but it is {why}; copy it too")
    return [
        Shard(folder / file, None if names is None else frozenset(names))
        for file, names in sorted(files.items())
    ]


def _no_weights(folder: Path) -> str:
    pickled = sorted(file.name for file in folder.glob("*.bin")) or sorted(
        file.name for file in folder.glob("*.pt*")
    )
    if pickled:
        return (
            f"{folder}: holds {pickled[0]} but no safetensors files; pickled weights can run code "
            f"and aren't read: {_CONVERT}"
        )
    return f"{folder}: holds no safetensors files; copy the model's weights into it"
