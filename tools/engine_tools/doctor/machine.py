"""Checks of the machine: libraries, compilers, GPU, memory, user."""

from __future__ import annotations

import os
import pwd
import shutil
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from engine_tools.doctor.findings import Finding, Level, Patient

DISTRIBUTION = "modular-engine"
_GIB = 2**30
_DRIVER = {12: 525, 13: 580}
"""The oldest driver that serves a CUDA runtime, by its major version (NVIDIA's release notes)."""
_LITTLE_MEMORY = 2 * _GIB


def check_libraries(_patient: Patient) -> Iterator[Finding]:
    """Every library that Engine needs is installed in a version that it works with."""
    for text in metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, wanted = requirement.name, str(requirement.specifier) or "any version"
        remedy = f"pip install '{name}{requirement.specifier}'"
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding("libraries", Level.ERROR, f"{name} is not installed", remedy)
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            detail = f"{name} {found} is installed, {wanted} is needed"
            yield Finding("libraries", Level.ERROR, detail, remedy)
    names = ("torch", "triton", "transformers")
    yield Finding("libraries", Level.OK, ", ".join(f"{name} {_version(name)}" for name in names))


def check_compiler(patient: Patient) -> Iterator[Finding]:
    """Inductor compiles C++ on a CPU; Triton compiles a launcher in C on a GPU."""
    backend = patient.config.compilation_config.backend
    if str(backend or "inductor") != "inductor":
        return
    level = Level.WARNING if backend is None else Level.ERROR
    language, names = (
        ("C++", ("g++", "clang++")) if patient.device == "cpu" else ("C", ("cc", "gcc"))
    )
    asked = os.environ.get("CXX" if language == "C++" else "CC")
    found = next(filter(None, map(shutil.which, [asked] if asked else names)), None)
    if found is None:
        sought = asked or " or ".join(names)
        remedy = (
            f"install a {language} compiler (apt install build-essential), or use --backend eager"
        )
        detail = f"no {language} compiler ({sought}) in PATH, which backend inductor needs"
        yield Finding("compiler", level, detail, remedy)
    else:
        yield Finding("compiler", Level.OK, found)
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        yield Finding(
            "compiler",
            level,
            f"Python's headers are not in {sysconfig.get_path('include')}",
            "install them (apt install python3-dev), or use --backend eager",
        )


def check_gpu(patient: Patient) -> Iterator[Finding]:
    """Torch, Triton and the driver fit together, and the device is there."""
    torch = _version("torch")
    cuda = torch.partition("+cu")[2]
    if patient.config.device == "cuda" and not patient.gpus:
        detail = "device cuda was asked for and the driver names none (nvidia-smi)"
        yield Finding("gpu", Level.ERROR, detail, "install a driver, or use --device cpu")
    for gpu in patient.gpus:
        detail = f"{gpu.name}, driver {gpu.driver}, {_size(gpu.free)} of {_size(gpu.total)} free"
        yield Finding("gpu", Level.OK, detail)
    if not patient.gpus:
        return
    if not cuda and "+" in torch:
        remedy = "install a CUDA build of torch, or use --device cpu"
        yield Finding("gpu", Level.WARNING, f"torch {torch} can't use the GPU", remedy)
    least = _DRIVER.get(int(cuda[:2])) if cuda[:2].isdigit() else None
    driver = patient.gpus[0].driver
    if least is not None and int(driver.partition(".")[0]) < least:
        detail = f"torch {torch} needs driver {least} or newer, {driver} is installed"
        yield Finding("gpu", Level.ERROR, detail, "update the driver, or install an older torch")
    if _version("triton") == "absent":
        remedy = "pip install triton, or use --attention sdpa --backend eager"
        yield Finding("gpu", Level.WARNING, "triton is not installed", remedy)


def check_memory(_patient: Patient) -> Iterator[Finding]:
    """Some memory is free; whether it is enough for the model is asked with the model."""
    free = available_memory()
    if free is None:
        return
    if free < _LITTLE_MEMORY:
        remedy = "end other processes, or give the machine more"
        yield Finding("memory", Level.WARNING, f"only {_size(free)} are available", remedy)
    else:
        yield Finding("memory", Level.OK, f"{_size(free)} available")


def check_user(_patient: Patient) -> Iterator[Finding]:
    """Compilers keep files under HOME and ask for the user's name."""
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        remedy = "set USER and HOME, or run as a user that /etc/passwd knows"
        if not (os.environ.get("USER") or os.environ.get("LOGNAME")):
            detail = f"uid {uid} has no name, and USER is not set: inductor can't name its folder"
            yield Finding("user", Level.ERROR, detail, remedy)
        entry = None
    home = os.environ.get("HOME") or (entry.pw_dir if entry else "")
    if not home or not os.access(home, os.W_OK):
        remedy = "set HOME to a folder that can be written"
        detail = f"HOME is {home!r}, which can't be written"
        yield Finding("user", Level.WARNING, detail, remedy)
    else:
        yield Finding("user", Level.OK, f"uid {uid}, HOME {home}")


def available_memory() -> int | None:
    """Return the bytes that can be had without swapping; None where the system doesn't tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return int(found.split()[1]) * 1024 if found else None


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def _size(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"
