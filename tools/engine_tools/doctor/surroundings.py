"""Checks of what a start touches: cache directory, plugins, port, model files."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine import DuplicatePluginError, ModelError, Registry, locate_model
from engine.artifacts import artifacts_folder
from engine_tools.doctor.findings import Finding, Level, Patient
from engine_tools.doctor.machine import available_memory

_GIB = 2**30
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_cache(patient: Patient) -> Iterator[Finding]:
    """Compiled artifacts can be kept."""
    folder = artifacts_folder(patient.config.compilation_config.cache_dir)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    remedy = "name another one with --cache-dir, or compile at each start"
    try:
        with tempfile.NamedTemporaryFile(dir=there):
            pass
    except OSError as error:
        detail = f"{there} can't be written: {error.strerror}"
        yield Finding("cache directory", Level.WARNING, detail, remedy)
        return
    free = shutil.disk_usage(there).free
    if free < _GIB:
        detail = f"{folder} has only {free / _GIB:.2f} GiB left"
        yield Finding("cache directory", Level.WARNING, detail, f"free some, or {remedy}")
    else:
        yield Finding("cache directory", Level.OK, f"{folder}, {free / _GIB:.0f} GiB free")


def check_plugins(_patient: Patient) -> Iterator[Finding]:
    """No name is claimed twice; whether each keeps the contract, `engine plugins check` says."""
    registry = Registry()
    claims = registry.claims()
    for kind, name in sorted({(claim.kind, claim.name) for claim in claims}):
        try:
            registry.find(kind, name)
        except DuplicatePluginError as error:
            remedy = "uninstall one, or select with distribution:name"
            yield Finding("plugins", Level.WARNING, str(error), remedy)
    foreign = sorted({claim.distribution for claim in claims} - {"modular-engine"})
    others = f"; from others: {', '.join(foreign)}" if foreign else ""
    yield Finding("plugins", Level.OK, f"{len(claims)} installed{others}")


def check_port(patient: Patient) -> Iterator[Finding]:
    """The server can listen."""
    if patient.uds is not None:
        folder = patient.uds.expanduser().absolute().parent
        if not folder.is_dir():
            detail = f"{folder} is no folder"
            yield Finding("port", Level.ERROR, detail, "make it, or name another --uds")
        return
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            patient.host, patient.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        detail = f"{patient.host}:{patient.port}: {error.strerror}"
        remedy = "end what listens there, or use another --host or --port (0 takes a free one)"
        yield Finding("port", Level.ERROR, detail, remedy)
    else:
        yield Finding("port", Level.OK, f"{patient.host}:{patient.port} is free")


def check_model(patient: Patient) -> Iterator[Finding]:
    """The model's files are all there and whole, and memory can hold them."""
    try:
        path = locate_model(patient.config.model)
    except ModelError as error:
        yield Finding("model", Level.ERROR, str(error), "name a model that is on this disk")
        return
    problems = list(_files(path, dummy=patient.config.load_format == "dummy"))
    for detail in problems:
        yield Finding("model", Level.ERROR, f"{path}: {detail}", "copy the model again, whole")
    needed = not patient.config.skip_tokenizer and patient.config.tokenizer is None
    if path.is_dir() and needed and not any((path / name).is_file() for name in _TOKENIZERS):
        remedy = "name one with --tokenizer, or serve token ids with --skip-tokenizer"
        yield Finding("model", Level.ERROR, f"{path} has no tokenizer", remedy)
    if problems:
        return
    size = _weight_bytes(path)
    yield Finding("model", Level.OK, f"{path}, {size / _GIB:.2f} GiB of weights")
    room = patient.gpus[0].free if patient.device == "cuda" and patient.gpus else available_memory()
    if room is not None and size > room:
        detail = f"{size / _GIB:.1f} GiB of weights, and {room / _GIB:.1f} GiB are free"
        yield Finding("memory", Level.ERROR, detail, "free some memory, or take a smaller model")


def _files(path: Path, *, dummy: bool) -> Iterator[str]:
    """Yield what is wrong with a model's files."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                yield "it doesn't begin as a GGUF file does"
        return
    try:
        json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        yield f"config.json can't be read: {error}"
    if dummy:
        return
    index = path / "model.safetensors.index.json"
    shards = sorted(path.glob("*.safetensors"))
    if index.is_file():
        try:
            named = {*json.loads(index.read_text())["weight_map"].values()}
        except (OSError, ValueError, KeyError, AttributeError) as error:
            yield f"{index.name} can't be read: {error!r}"
            return
        for name in sorted(named - {shard.name for shard in shards}):
            yield f"{name} is missing, which {index.name} names"
    elif not shards:
        yield "it has no .safetensors file"
    yield from filter(None, map(_shard_problem, shards))


def _shard_problem(shard: Path) -> str:
    """Read a file's header, which says how long the file must be."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(shard, framework="numpy"):
            return ""
    except (OSError, SafetensorError) as error:
        return f"{shard.name} is damaged: {error}"


def _weight_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)
