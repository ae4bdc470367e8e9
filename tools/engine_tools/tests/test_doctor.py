"""Each fault that is planted on a machine is found, at its level, with a remedy."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import EngineConfig
from engine.settings import as_settings
from engine_tools.doctor import (
    Accelerators,
    Address,
    Finding,
    Gpu,
    Level,
    Subject,
    TorchBuild,
    examination,
    folders,
)
from engine_tools.doctor.compilers import check_compiler
from engine_tools.doctor.examination import examine
from engine_tools.doctor.folders import check_cache, check_temporary, check_user
from engine_tools.doctor.listening import check_address
from engine_tools.doctor.memory import check_memory, free_memory
from engine_tools.doctor.versions import check_device, check_requirements, check_triton, unmet

NO_FOLDER = Path("/proc/engine")  # not even root can make it
GPU = Gpu("0", "GPU-aa", "A GPU", "570.1", 80 * 2**30, 70 * 2**30)
ANY_PORT, NO_GPU = Address(port=0), Accelerators()
CPU_BUILD, CUDA_BUILD = TorchBuild("2.13.0+cpu"), TorchBuild("2.13.0+cu128", (12, 8))

Make = Callable[..., Subject]


@pytest.fixture
def subject(tiny_model: Path) -> Make:
    """Return a subject of the tiny model, on a machine without GPUs unless one is given."""

    def made(
        address: Address = ANY_PORT,
        gpus: Accelerators = NO_GPU,
        torch: TorchBuild = CPU_BUILD,
        **settings: Any,
    ) -> Subject:
        config = EngineConfig(**{"model": str(tiny_model), **settings})
        return Subject(as_settings(config), address, gpus, torch)

    return made


def only(findings: Iterator[Finding], level: Level) -> Finding:
    """Return the one finding that isn't ok, or the last one if all should be."""
    found = list(findings)
    bad = [finding for finding in found if finding.level is not Level.OK]
    assert len(bad) == (level is not Level.OK), found
    chosen = bad[0] if bad else found[-1]
    assert chosen.level is level
    assert bool(chosen.remedy) == (level is not Level.OK)
    return chosen


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_sound_machine_has_no_error_and_every_check_speaks(subject: Make) -> None:
    findings = examine(subject())
    assert [f for f in findings if f.level is Level.ERROR] == []
    assert len({finding.check for finding in findings}) == len(examination.CHECKS)


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(subject: Make) -> None:
    def check_nothing_much(_: Subject) -> Iterator[Finding]:
        raise ZeroDivisionError("of all things")

    findings = examine(subject(), [check_nothing_much, check_address])
    assert [f.check for f in findings] == ["nothing much", "address"]
    assert "ZeroDivisionError: of all things" in findings[0].what
    assert findings[0].level is Level.ERROR


# --- versions and devices ---


def test_installed_requirements_are_met(subject: Make) -> None:
    assert "all requirements met" in only(check_requirements(subject()), Level.OK).what


def test_missing_and_old_requirements_are_told_and_those_of_other_systems_are_not() -> None:
    texts = ["click>=8", "click>=999", "no-such-thing-at-all>=1", 'absent; sys_platform == "none"']
    assert [line.split(";")[1].strip() for line in unmet(texts)] == [
        "click>=999 is needed",
        "no-such-thing-at-all>=1 is needed",
    ]


@pytest.mark.parametrize(
    ("device", "gpus", "torch", "level", "says"),
    [
        ("cpu", Accelerators((GPU,), (12, 8)), CUDA_BUILD, Level.OK, "cpu"),
        ("auto", Accelerators((GPU,), (12, 8)), CUDA_BUILD, Level.OK, "A GPU, driver 570.1"),
        ("auto", Accelerators((GPU,), (12, 8)), CPU_BUILD, Level.WARNING, "A GPU isn't used"),
        ("auto", Accelerators((GPU,), (12, 4)), CUDA_BUILD, Level.WARNING, "(CUDA 12.4)"),
        ("auto", Accelerators((GPU,), (11, 8)), CUDA_BUILD, Level.ERROR, "(CUDA 11.8)"),
        ("auto", Accelerators((GPU,), None), CUDA_BUILD, Level.ERROR, "libcuda.so.1"),
        ("auto", Accelerators(trouble="it hangs"), CUDA_BUILD, Level.WARNING, "it hangs"),
        ("cuda", Accelerators(), CUDA_BUILD, Level.ERROR, "no GPU is visible"),
        ("cuda", Accelerators((GPU,), (12, 8)), CPU_BUILD, Level.ERROR, "is a CPU build"),
        ("auto", Accelerators(), TorchBuild(), Level.ERROR, "torch isn't installed"),
    ],
)
def test_device_driver_and_torch_are_compared(
    subject: Make, device: str, gpus: Accelerators, torch: TorchBuild, level: Level, says: str
) -> None:
    found = only(check_device(subject(gpus=gpus, torch=torch, device=device)), level)
    assert says in found.what


def test_missing_triton_matters_on_a_gpu_only(
    subject: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_tools.doctor.versions._TRITON", ("no-triton-here",))
    only(check_triton(subject()), Level.OK)
    on_gpu = {"gpus": Accelerators((GPU,), (12, 8)), "torch": CUDA_BUILD}
    only(check_triton(subject(**on_gpu)), Level.WARNING)
    only(check_triton(subject(**on_gpu, attention="triton")), Level.ERROR)


# --- the compiler ---


def test_a_compiler_in_order_is_ok(subject: Make) -> None:
    assert "compiles" in only(check_compiler(subject()), Level.OK).what


@pytest.mark.parametrize(
    ("choice", "level"),
    [
        ({}, Level.WARNING),
        ({"backend": "inductor"}, Level.ERROR),
        ({"mode": "vllm_compile"}, Level.ERROR),
        ({"mode": "none"}, Level.OK),
        ({"backend": "eager"}, Level.OK),
        ({"backend": "inductor", "require_cache": True}, Level.OK),
    ],
)
def test_a_missing_compiler_is_as_bad_as_the_settings_make_it(
    subject: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    choice: dict[str, Any],
    level: Level,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    only(check_compiler(subject(compilation_config=choice)), level)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'x.cpp:1: fatal error: omp.h: No such file' >&2; exit 1", "omp.h"),
        ("echo 'x.cpp:3: fatal error: Python.h: No such file' >&2; exit 1", "Python's headers"),
        ("exit 1", "no word of why"),
    ],
)
def test_a_compiler_that_lacks_headers_is_told(
    subject: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setenv("CXX", str(program(tmp_path, "broken-cxx", script)))
    assert says in only(check_compiler(subject()), Level.WARNING).what


# --- folders ---


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a user whom /etc/passwd doesn't know, as in many containers."""
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("nobody")
def test_a_user_without_name_and_home_is_told_both(subject: Make, tmp_path: Path) -> None:
    name, home = check_user(subject())
    assert (name.level, home.level) == (Level.WARNING, Level.ERROR)
    assert only(check_cache(subject()), Level.ERROR).remedy == "set HOME or --cache-dir"
    elsewhere = subject(compilation_config={"cache_dir": tmp_path})
    assert [found.level for found in check_user(elsewhere)] == [Level.WARNING, Level.WARNING]


def test_a_user_with_a_home_is_ok(subject: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("LOGNAME", "somebody")
    assert "somebody" in only(check_user(subject()), Level.OK).what


def test_a_cache_that_cannot_be_written_is_a_warning(subject: Make, tmp_path: Path) -> None:
    there = subject(compilation_config={"cache_dir": tmp_path / "not" / "yet"})
    only(check_cache(there), Level.OK)
    assert list(tmp_path.iterdir()) == []
    nowhere = subject(compilation_config={"cache_dir": NO_FOLDER})
    assert str(NO_FOLDER) in only(check_cache(nowhere), Level.WARNING).what
    (tmp_path / "file").touch()
    below = subject(compilation_config={"cache_dir": tmp_path / "file"})
    assert "is a file" in only(check_cache(below), Level.WARNING).what


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_folder_is_a_warning(subject: Make, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    only(check_cache(subject(compilation_config={"cache_dir": tmp_path})), Level.WARNING)


def test_a_cache_that_is_required_must_hold_something(subject: Make, tmp_path: Path) -> None:
    required = subject(compilation_config={"cache_dir": tmp_path, "require_cache": True})
    only(check_cache(required), Level.ERROR)
    (tmp_path / "artifacts").mkdir()
    assert "holds nothing" in only(check_cache(required), Level.ERROR).what
    (tmp_path / "artifacts" / "something").touch()
    only(check_cache(required), Level.OK)


def test_a_full_disk_is_a_warning(
    subject: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LOW_DISK", 2**80)
    found = only(check_cache(subject(compilation_config={"cache_dir": tmp_path})), Level.WARNING)
    assert "of disk are free" in found.what


def test_a_useless_tmpdir_is_told(subject: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(NO_FOLDER))
    assert "another folder is taken" in only(check_temporary(subject()), Level.WARNING).what


@pytest.mark.parametrize(
    ("choice", "level"),
    [
        ({}, Level.WARNING),
        ({"backend": "inductor"}, Level.ERROR),
        ({"mode": "none"}, Level.OK),
    ],
)
def test_temporary_files_that_cannot_be_run_matter_to_compilers(
    subject: Make, monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any], level: Level
) -> None:
    real = os.statvfs("/")
    values = [*real]
    values[8] = os.ST_NOEXEC
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    monkeypatch.setattr(folders, "LOW_DISK", 0)
    monkeypatch.delenv("TMPDIR", raising=False)
    only(check_temporary(subject(compilation_config=choice)), level)


# --- the address ---


def test_a_port_that_is_taken_is_an_error_and_a_free_one_is_not(subject: Make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert (
            f"port {port} is in use"
            in only(check_address(subject(Address(port=port))), Level.ERROR).what
        )
    only(check_address(subject(Address(port=port))), Level.OK)


def test_a_host_of_another_machine_is_an_error(subject: Make) -> None:
    found = only(check_address(subject(Address(host="192.0.2.1"))), Level.ERROR)
    assert "192.0.2.1" in found.what


def test_a_unix_socket_is_checked_as_the_server_takes_it(subject: Make, tmp_path: Path) -> None:
    path = tmp_path / "s"
    only(check_address(subject(Address(uds=path))), Level.OK)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert (
            "a server listens" in only(check_address(subject(Address(uds=path))), Level.ERROR).what
        )
    assert "left behind" in only(check_address(subject(Address(uds=path))), Level.OK).what
    (tmp_path / "file").touch()
    only(check_address(subject(Address(uds=tmp_path / "file"))), Level.ERROR)
    only(check_address(subject(Address(uds=tmp_path / "absent" / "s"))), Level.ERROR)


# --- memory ---


def test_weights_that_do_not_fit_are_an_error(
    subject: Make, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (tiny_model / "model.safetensors").stat().st_size
    only(check_memory(subject()), Level.OK)
    monkeypatch.setattr("engine_tools.doctor.memory.free_memory", lambda: size - 1)
    assert "weights take about" in only(check_memory(subject()), Level.ERROR).what
    # Half of float32, and none known for random weights.
    only(check_memory(subject(dtype="bfloat16")), Level.OK)
    only(check_memory(subject(load_format="dummy")), Level.OK)


def test_the_kv_cache_counts_and_the_memory_of_the_gpu(subject: Make) -> None:
    on_gpu = {"gpus": Accelerators((GPU,), (12, 8)), "torch": CUDA_BUILD}
    assert "70.0 GiB are free on cuda" in only(check_memory(subject(**on_gpu)), Level.OK).what
    found = only(check_memory(subject(**on_gpu, kv_cache_memory="75GiB")), Level.ERROR)
    assert "KV cache 75.0 GiB" in found.what
    assert "--kv-cache-memory" in found.remedy


def test_free_memory_is_the_least_of_the_machine_and_its_control_group(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert free_memory(meminfo, tmp_path) == 8000 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 300\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(meminfo, tmp_path) == 8000 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_memory(meminfo, tmp_path) == 5000 - 1000 + 300
    assert free_memory(tmp_path / "absent", tmp_path / "absent") is None


def test_no_check_imports_torch(tiny_model: Path) -> None:
    code = (
        "import sys\n"
        "from engine import EngineConfig\n"
        "from engine.settings import as_settings\n"
        "from engine_tools.doctor import CHECKS, Subject, examine\n"
        "found = examine(Subject(as_settings(EngineConfig(model=sys.argv[1]))))\n"
        "assert len(found) >= len(CHECKS)\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
