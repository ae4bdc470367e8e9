"""Each planted fault of a machine is found, with its remedy; a sound one is found sound."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from engine import CompilationConfig, EngineConfig
from engine_cli.main import main
from engine_tools.doctor import CHECKS, Finding, Level, Patient, examine
from engine_tools.doctor.machine import (
    check_compiler,
    check_gpu,
    check_libraries,
    check_memory,
    check_user,
)
from engine_tools.doctor.surroundings import check_cache, check_model, check_port

GPU = "NVIDIA H200, {driver}, 143771, 143000\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Empty PATH; return what puts a program into it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)

    def add(name: str, output: str = "") -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\nprintf '{output}'\n")
        path.chmod(0o755)

    return add


def patient(**settings: Any) -> Patient:
    return Patient(EngineConfig(**settings))


def worst(findings: Iterator[Finding]) -> Finding:
    """Return the worst finding, which says what to do unless it is ok."""
    order = list(Level)
    found = max(findings, key=lambda finding: order.index(finding.level))
    assert bool(found.remedy) == (found.level is not Level.OK)
    return found


def test_a_sound_machine_is_found_sound(tiny_model: Path) -> None:
    findings = examine(Patient(EngineConfig(model=str(tiny_model), device="cpu"), port=0))
    assert {f.check for f in findings} >= {
        "libraries",
        "plugins",
        "user",
        "memory",
        "model",
        "port",
    }
    assert not [f for f in findings if f.level is Level.ERROR]
    assert len(findings) >= len(CHECKS) - 1  # without a GPU, nothing is said about one


def test_a_missing_compiler_is_an_error_where_it_was_asked_for(
    programs: Callable[..., None],
) -> None:
    del programs
    asked = CompilationConfig(backend="inductor")
    found = worst(check_compiler(patient(device="cpu", compilation_config=asked)))
    assert found.level is Level.ERROR
    assert "g++ or clang++" in found.detail
    assert "--backend eager" in found.remedy
    assert worst(check_compiler(patient(device="cpu"))).level is Level.WARNING
    eager = CompilationConfig(backend="eager")
    assert list(check_compiler(patient(compilation_config=eager))) == []


def test_a_compiler_that_a_variable_names_must_be_there(
    programs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs("g++")
    assert worst(check_compiler(patient(device="cpu"))).level is Level.OK
    monkeypatch.setenv("CXX", "my-c++")
    assert "my-c++" in worst(check_compiler(patient(device="cpu"))).detail


def test_a_device_that_is_not_there_is_an_error(programs: Callable[..., None]) -> None:
    del programs
    assert worst(check_gpu(patient(device="cuda"))).level is Level.ERROR
    assert list(check_gpu(patient(device="auto"))) == []


@pytest.mark.parametrize(
    ("torch", "driver", "level", "said"),
    [
        ("2.11.0+cu130", "580.159.04", Level.OK, "NVIDIA H200, driver 580.159.04, 139.6 GiB"),
        ("2.11.0+cu130", "535.1", Level.ERROR, "needs driver 580 or newer, 535.1"),
        ("2.11.0+cpu", "580.1", Level.WARNING, "torch 2.11.0+cpu can't use the GPU"),
    ],
)
def test_torch_and_the_driver_must_fit(
    programs: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    driver: str,
    level: Level,
    said: str,
) -> None:
    programs("nvidia-smi", GPU.format(driver=driver))
    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: {"torch": torch, "triton": "3.6"}.get(name) or real(name)
    )
    found = worst(check_gpu(patient()))
    assert found.level is level
    assert said in found.detail


def test_a_library_of_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "1.0" if n == "pluggy" else real(n))
    found = worst(check_libraries(patient()))
    assert found.level is Level.ERROR
    assert found.detail.startswith("pluggy 1.0 is installed, ")
    assert found.remedy.startswith("pip install 'pluggy")


def test_a_user_without_name_or_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> Any:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    assert worst(check_user(patient())).level is Level.ERROR
    monkeypatch.setenv("USER", "somebody")
    assert worst(check_user(patient())).level is Level.OK
    monkeypatch.setenv("HOME", "/proc/nowhere")
    assert worst(check_user(patient())).detail == "HOME is '/proc/nowhere', which can't be written"


def test_a_cache_directory_that_cannot_be_written() -> None:
    config = CompilationConfig(cache_dir=Path("/proc/self/cache"))
    found = worst(check_cache(patient(compilation_config=config)))
    assert found.level is Level.WARNING
    assert "--cache-dir" in found.remedy


def test_little_memory_and_a_model_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    monkeypatch.setattr("engine_tools.doctor.machine.available_memory", lambda: 1000)
    monkeypatch.setattr("engine_tools.doctor.surroundings.available_memory", lambda: 1000)
    assert worst(check_memory(patient())).level is Level.WARNING
    found = worst(check_model(patient(model=str(tiny_model), device="cpu")))
    assert (found.check, found.level) == ("memory", Level.ERROR)


def test_a_port_that_is_taken_or_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = worst(check_port(Patient(EngineConfig(), port=port)))
    assert found.level is Level.ERROR
    assert f"127.0.0.1:{port}" in found.detail
    assert worst(check_port(Patient(EngineConfig(), port=port))).level is Level.OK
    missing = Patient(EngineConfig(), uds=tmp_path / "none" / "engine.sock")
    assert worst(check_port(missing)).level is Level.ERROR


def copy(tiny_model: Path, folder: Path) -> Path:
    return Path(shutil.copytree(tiny_model, folder / "copy"))


def truncate(model: Path) -> None:
    shard = model / "model.safetensors"
    os.truncate(shard, shard.stat().st_size - 8)


def name_a_missing_shard(model: Path) -> None:
    index = {"weight_map": {"x": "model.safetensors", "y": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncate, "model.safetensors is damaged"),
        (name_a_missing_shard, "model-2.safetensors is missing"),
        (lambda m: (m / "config.json").write_text("{"), "config.json can't be read"),
        (lambda m: (m / "model.safetensors").unlink(), "it has no .safetensors file"),
        (lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer"),
    ],
)
def test_a_model_that_is_not_whole(
    tiny_model: Path, tmp_path: Path, spoil: Callable[[Path], Any], said: str
) -> None:
    model = copy(tiny_model, tmp_path)
    assert worst(check_model(patient(model=str(model), device="cpu"))).level is Level.OK
    spoil(model)
    found = worst(check_model(patient(model=str(model), device="cpu")))
    assert found.level is Level.ERROR
    assert said in found.detail


def test_a_model_that_is_none(tmp_path: Path) -> None:
    assert worst(check_model(patient(model=str(tmp_path / "none")))).level is Level.ERROR
    (tmp_path / "x.gguf").write_bytes(b"GGML....")
    assert "doesn't begin as" in worst(check_model(patient(model=str(tmp_path / "x.gguf")))).detail


def test_dummy_weights_need_a_configuration_only(tiny_model: Path, tmp_path: Path) -> None:
    model = copy(tiny_model, tmp_path)
    (model / "model.safetensors").unlink()
    found = worst(check_model(patient(model=str(model), device="cpu", load_format="dummy")))
    assert found.level is Level.OK


def test_the_command_ends_with_1_for_an_error_only(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", str(tiny_model), "--device", "cpu", "--port", "0"]
    assert main(arguments) == 0
    assert main([*arguments, "--device", "cpu", "--json"]) == 0
    capsys.readouterr()
    assert main(["doctor", "/nowhere", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (error,) = [row for row in found if row["level"] == "error" and row["check"] == "model"]
    assert error["remedy"]


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from engine_cli.main import main; main(['doctor', '--port', '0']); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
