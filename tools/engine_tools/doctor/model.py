"""Check of the model's files: all there, none truncated. No weight is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.errors import EngineError, ModelError
from engine.model_folder import read_json
from engine_tools.doctor.checkpoint import read_headers
from engine_tools.doctor.finding import Finding, Reporter
from engine_tools.doctor.sizes import show
from engine_tools.doctor.subject import Subject

_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def check_model(subject: Subject) -> Iterator[Finding]:
    """Read the headers of the model's files."""
    say = Reporter("model")
    try:
        path = subject.model
        if path.is_dir():
            yield from _folder(say, subject, path)
        else:
            yield _file(say, subject, path)
    except (EngineError, OSError) as error:
        what, _, remedy = str(error).rpartition("; ")
        yield say.error(what or str(error), remedy if what else "pass another model")


def _folder(say: Reporter, subject: Subject, folder: Path) -> Iterator[Finding]:
    configuration = read_json(folder / "config.json")
    if not isinstance(configuration.get("model_type"), str):
        raise ModelError(f"{folder / 'config.json'}: names no model_type; copy the file again")
    yield from _tokenizer(say, subject, folder)
    if subject.settings.config.load_format == "dummy":
        yield say.ok(f"{folder}: configuration, with random weights (--load-format dummy)")
        return
    if configuration.get("quantization_config") is not None:
        raise ModelError(f"{folder}: its weights are quantised; pass the unquantised model")
    headers = read_headers(folder)
    yield say.ok(
        f"{folder}: {headers.tensors} tensors in {headers.files} "
        f"{'file' if headers.files == 1 else 'files'}, {show(headers.bytes)}"
    )


def _tokenizer(say: Reporter, subject: Subject, model: Path) -> Iterator[Finding]:
    config = subject.settings.config
    if config.skip_tokenizer:
        return
    folder = model if config.tokenizer is None else Path(config.tokenizer).expanduser()
    if not any((folder / name).is_file() for name in _TOKENIZER):
        yield say.error(
            f"{folder}: has no tokenizer ({', '.join(_TOKENIZER)})",
            "copy it too, pass a folder that has one with --tokenizer, or serve token ids only "
            "with --skip-tokenizer",
        )
    elif (file := folder / "tokenizer.json").is_file():
        read_json(file)


def _file(say: Reporter, subject: Subject, path: Path) -> Finding:
    """Let the loader of the file's format read its header, which also tells a truncation.

    By the file's ending: asking every loader what it handles would import those that bring torch.
    """
    named = subject.settings.config.load_format
    if named == "dummy":
        raise ModelError(f"{path}: --load-format dummy makes weights for a folder; pass a folder")
    name = path.suffix.lower().lstrip(".") if named == "auto" else named
    count = subject.registry.load("weights", name)().num_tensors(path)
    tensors = "" if count is None else f"{count} tensors, "
    return say.ok(f"{path}: {tensors}{show(path.stat().st_size)}")
