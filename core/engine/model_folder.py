"""Reads what stands beside the weights in a model folder of transformers' layout.

For weight loaders; only local files are read, and code that a folder brings is never run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        ModelError: the file is missing, unreadable, not JSON or not an object; names it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file; a model folder needs it") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: is not valid JSON ({error}); copy the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds a {type(value).__name__}, not a JSON object")
    return value


def read_pooling(folder: Path) -> str | None:
    """Return how a model that was trained for embeddings pools: `mean` or `last`.

    Read from `1_Pooling/config.json`, where sentence-transformers keeps it; None without it.

    Raises:
        ModelError: the file is unusable, or names a pooling that isn't known here.
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    told = read_json(path)
    for key, kind in (("pooling_mode_mean_tokens", "mean"), ("pooling_mode_lasttoken", "last")):
        if told.get(key) is True:
            return kind
    raise ModelError(f"{path}: pools neither by the mean nor by the last token; pass --pooling")


def read_config(folder: Path) -> Any:
    """Return the folder's config.json as a transformers `PretrainedConfig`.

    Raises:
        ModelError: it is missing or invalid, or transformers doesn't know the architecture.
    """
    path = folder / "config.json"
    model_type = read_json(path).get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{path}: names no model_type, so its architecture is unknown")

    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    if model_type not in CONFIG_MAPPING:
        raise ModelError(
            f"{path}: model_type={model_type!r} is no architecture that transformers "
            f"{__version__} knows; upgrade transformers if it is a new one (code that a model "
            "folder brings is never run)"
        )
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        StrictDataclassError,
    ) as error:
        raise ModelError(
            f"{path}: is no valid {model_type} configuration: {_line(error)}"
        ) from error


def read_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer as a transformers fast tokenizer; None if it has none.

    Raises:
        ModelError: its files are invalid, or there is no fast tokenizer in them.
    """
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # what the tokenizers library raises has no class of its own
        raise ModelError(
            f"{folder}: its tokenizer cannot be read ({_line(error)}); pass another folder with "
            "--tokenizer, or serve token ids only with --skip-tokenizer"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"{folder}: has no fast tokenizer ({type(tokenizer).__name__} is a slow one); pass a "
            "folder that holds tokenizer.json with --tokenizer"
        )
    return tokenizer


def generation_end_token_ids(folder: Path) -> list[int]:
    """Return the end tokens that the folder's generation_config.json names, if it has one.

    Raises:
        ModelError: the file is invalid.
    """
    path = folder / "generation_config.json"
    return token_ids(read_json(path).get("eos_token_id")) if path.exists() else []


def token_ids(value: Any) -> list[int]:
    """Return an `eos_token_id`, which may be one id, several or none, as a list."""
    return (
        [] if value is None else [int(v) for v in (value if isinstance(value, list) else [value])]
    )


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
