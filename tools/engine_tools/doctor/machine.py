"""What the machine has, asked without torch: importing that takes longer than all the checks."""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_QUERY = "index,uuid,name,driver_version,memory.total,memory.free"
_COMMAND = ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
_TIMEOUT = 5
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory is in bytes, and None where the driver doesn't tell it."""

    index: str
    uuid: str
    name: str
    driver: str
    total: int | None
    free: int | None


@dataclass(frozen=True)
class Accelerators:
    """The GPUs that this process may use.

    Attributes:
        gpus: the visible ones; the engine takes the first.
        driver_cuda: the newest CUDA version that the driver runs; None without a driver.
        trouble: why the GPUs couldn't be asked, if something was there to ask.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_cuda: tuple[int, int] | None = None
    trouble: str = ""


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch.

    Attributes:
        version: None when there is none.
        cuda: the CUDA version that it was built for; None for a CPU build.
    """

    version: str | None = None
    cuda: tuple[int, int] | None = None


def find_accelerators() -> Accelerators:
    """Ask nvidia-smi and libcuda; neither makes a context, so no memory is taken."""
    driver_cuda = _driver_cuda()
    try:
        done = subprocess.run(  # noqa: S603 - a constant command
            _COMMAND,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except OSError:
        trouble = "" if driver_cuda is None else "there is a driver, but no nvidia-smi to ask"
        return Accelerators((), driver_cuda, trouble)
    except subprocess.TimeoutExpired:
        return Accelerators((), driver_cuda, f"nvidia-smi didn't answer within {_TIMEOUT} s")
    if done.returncode:
        said = next(iter((done.stdout + done.stderr).splitlines()), "")
        return Accelerators((), driver_cuda, f"nvidia-smi failed ({done.returncode}): {said}")
    gpus = [_read_gpu(line) for line in done.stdout.splitlines() if line.count(",") >= 5]
    return Accelerators(_visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")), driver_cuda)


def _read_gpu(line: str) -> Gpu:
    index, uuid, name, driver, total, free = (cell.strip() for cell in line.split(",", 5))
    return Gpu(index, uuid, name, driver, _mebibytes(total), _mebibytes(free))


def _mebibytes(text: str) -> int | None:
    return int(text) * _MIB if text.isdigit() else None  # `[N/A]` where GPUs are cut in parts


def _visible(gpus: list[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """Keep what CUDA_VISIBLE_DEVICES names, in its order; like CUDA, stop at an unknown name."""
    if variable is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for name in map(str.strip, variable.split(",")):
        found = [gpu for gpu in gpus if name == gpu.index or (name and gpu.uuid.startswith(name))]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def _driver_cuda() -> tuple[int, int] | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        failed = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)


def find_torch() -> TorchBuild:
    """Read the installed torch's version and CUDA version from its files."""
    try:
        distribution = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return TorchBuild()
    return TorchBuild(
        distribution.version, _built_for(Path(str(distribution.locate_file("torch/version.py"))))
    )


def _built_for(file: Path) -> tuple[int, int] | None:
    """Return the value of `cuda` in torch's generated version.py."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="cuda"), value=ast.Constant(value=str(text))):
                pass
            case ast.Assign(targets=[ast.Name(id="cuda")], value=ast.Constant(value=str(text))):
                pass
            case _:
                continue
        major, _, minor = text.partition(".")
        return int(major), int(minor.partition(".")[0] or 0)
    return None
