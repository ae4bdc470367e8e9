"""A model whose files are missing or damaged is told before it is loaded."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine import EngineConfig
from engine.settings import as_settings
from engine_tools.doctor import Accelerators, Finding, Level, Subject, TorchBuild
from engine_tools.doctor.model import check_model

INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny model to damage."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def check(model: Path, **settings: Any) -> list[Finding]:
    config = EngineConfig(model=str(model), **settings)
    return list(check_model(Subject(as_settings(config), accelerators=Accelerators())))


def error(model: Path, **settings: Any) -> Finding:
    found = [f for f in check(model, **settings) if f.level is not Level.OK]
    assert len(found) == 1
    assert found[0].level is Level.ERROR
    assert found[0].remedy
    return found[0]


def shard(model: Path) -> None:
    """Cut the single file of a model into two, with an index."""
    tensors = load_file(model / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, own in parts.items():
        save_file({name: np.array(tensors[name]) for name in own}, model / file)
    weight_map = {name: file for file, own in parts.items() for name in own}
    (model / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (model / "model.safetensors").unlink()


def test_a_whole_model_is_ok_in_one_file_and_in_several(model: Path) -> None:
    single = check(model)
    shard(model)
    several = check(model)
    assert [f.level for f in (*single, *several)] == [Level.OK, Level.OK]
    assert "in 1 file" in single[0].what
    assert "in 2 files" in several[0].what
    assert single[0].what.split(" tensors")[0] == several[0].what.split(" tensors")[0]


def _truncate(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _lose_a_shard(model: Path) -> None:
    shard(model)
    (model / "b.safetensors").unlink()


def _lose_a_tensor(model: Path) -> None:
    shard(model)
    tensors = load_file(model / "b.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, model / "b.safetensors")


def _spoil_the_index(model: Path) -> None:
    shard(model)
    (model / INDEX).write_text("{}")


def _lose_a_numbered_part(model: Path) -> None:
    (model / "model.safetensors").rename(model / "m-00001-of-00002.safetensors")


def _add_an_unknown_file(model: Path) -> None:
    shard(model)
    (model / INDEX).unlink()


def _quantise(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "planted"}
    (model / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_lose_a_numbered_part, "m-00002-of-00002.safetensors: is missing"),
        (_add_an_unknown_file, "holds several safetensors files"),
        (_quantise, "quantised"),
        (shutil.rmtree, "no such folder or file"),
        (_truncate, "is truncated"),
        (_lose_a_shard, "b.safetensors: is missing"),
        (_lose_a_tensor, "lacks 'model.norm.weight'"),
        (_spoil_the_index, "has no weight_map"),
        (lambda m: (m / "model.safetensors").unlink(), "holds no safetensors files"),
        (lambda m: (m / "config.json").unlink(), "holds neither config.json"),
        (lambda m: (m / "config.json").write_text("{"), "is not valid JSON"),
        (lambda m: (m / "config.json").write_text("{}"), "names no model_type"),
        (lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer (tokenizer.json"),
        (lambda m: (m / "tokenizer.json").write_text("{"), "is not valid JSON"),
    ],
)
def test_a_damaged_folder_is_an_error(
    model: Path, damage: Callable[[Path], object], says: str
) -> None:
    damage(model)
    assert says in error(model).what


def test_the_doctor_refuses_what_the_loader_refuses(model: Path) -> None:
    from engine import ModelError, Registry

    loader = Registry().load("weights", "safetensors")()
    for damage in (_lose_a_shard, _lose_a_numbered_part, _add_an_unknown_file, _quantise):
        copy = shutil.copytree(model, model.with_name(damage.__name__))
        damage(copy)
        error(copy)
        with pytest.raises(ModelError):
            loader.config(copy)


def test_a_tokenizer_of_the_older_files_is_one_too(model: Path) -> None:
    (model / "tokenizer.json").rename(model / "vocab.json")
    assert [f.level for f in check(model)] == [Level.OK]


def test_what_the_settings_leave_out_may_be_missing(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "model.safetensors").unlink()
    found = check(model, skip_tokenizer=True, load_format="dummy")
    assert [f.level for f in found] == [Level.OK]


def gguf(path: Path, *, length: int, magic: bytes = b"GGUF") -> Path:
    """Write a GGUF file of one float32 tensor with `length` bytes of data behind its header."""
    name = b"token_embd.weight"
    info = struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 8, 0, 0)
    header = magic + struct.pack("<IQQ", 3, 1, 0) + info
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(length))
    return path


def test_a_gguf_file_is_read_as_far_as_its_header(tmp_path: Path) -> None:
    found = check(gguf(tmp_path / "whole.gguf", length=32))
    assert [f.level for f in found] == [Level.OK]
    assert "1 tensors" in found[0].what
    assert "is truncated" in error(gguf(tmp_path / "short.gguf", length=31)).what
    assert "no GGUF file" in error(gguf(tmp_path / "x.gguf", length=32, magic=b"XXXX")).what
    assert "dummy" in error(gguf(tmp_path / "d.gguf", length=32), load_format="dummy").what


def test_torch_of_this_environment_is_read_from_its_files() -> None:
    import torch

    from engine_tools.doctor.machine import find_torch

    built = torch.version.cuda
    wanted = None
    if built is not None:
        major, minor = built.split(".")[:2]
        wanted = (int(major), int(minor))
    assert find_torch() == TorchBuild(torch.__version__, wanted)
