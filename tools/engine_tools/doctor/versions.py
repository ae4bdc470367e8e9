"""Checks of what is installed: Python, every requirement, torch beside the driver, Triton."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from engine_tools.doctor.finding import Finding, Reporter
from engine_tools.doctor.subject import Subject

DISTRIBUTION = "modular-engine"
# A CUDA build of torch may bring Triton under a name of its own.
_TRITON = ("triton", "pytorch-triton", "triton-windows")


def check_requirements(subject: Subject) -> Iterator[Finding]:
    """Compare the engine's requirements with what is installed."""
    del subject
    say = Reporter("requirements")
    try:
        about = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield say.warning(
            f"{DISTRIBUTION} has no metadata, so its requirements are unknown",
            "install the engine: `pip install --editable .` in its folder",
        )
        return
    python = platform.python_version()
    if not SpecifierSet(about["Requires-Python"] or "").contains(python, prereleases=True):
        yield say.error(
            f"Python {python}, but {about['Requires-Python']} is needed", "use another Python"
        )
    problems = unmet(metadata.requires(DISTRIBUTION) or [])
    for problem in problems:
        yield say.error(problem, f"run `pip install --upgrade {DISTRIBUTION}` or install it alone")
    if not problems:
        yield say.ok(f"Python {python}, {DISTRIBUTION} {about['Version']}; all requirements met")


def unmet(requirements: list[str]) -> list[str]:
    """Return a sentence for each requirement of metadata that isn't met here."""
    problems = []
    for text in requirements:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            problems.append(f"the requirement {text!r} can't be read")
            continue
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            problems.append(f"{wanted.name} isn't installed; {wanted} is needed")
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            problems.append(f"{wanted.name} {version} is installed; {wanted} is needed")
    return problems


def check_device(subject: Subject) -> Iterator[Finding]:
    """See whether the device that is asked for is there, and torch and driver fit it."""
    say, torch, found = Reporter("device"), subject.torch, subject.accelerators
    if torch.version is None:
        yield say.error("torch isn't installed", "install torch from where pip finds it")
        return
    asked = subject.settings.config.device
    if found.trouble and asked != "cpu":
        yield say.warning(found.trouble, "repair the driver, or pass --device cpu")
    if subject.device == "cpu":
        if found.gpus and asked != "cpu":
            yield say.warning(
                f"torch {torch.version} is a CPU build, so {found.gpus[0].name} isn't used",
                "install a CUDA build of torch, or pass --device cpu",
            )
        yield say.ok(f"cpu, torch {torch.version}")
        return
    if torch.cuda is None:
        yield say.error(
            f"--device {asked}: torch {torch.version} is a CPU build",
            "install a CUDA build of torch, or pass --device cpu",
        )
    elif not found.gpus:
        yield say.error(
            f"--device {asked}: no GPU is visible",
            "look at CUDA_VISIBLE_DEVICES and `nvidia-smi`, or pass --device cpu",
        )
    else:
        yield _compare(say, subject, torch.cuda)


def _compare(say: Reporter, subject: Subject, built: tuple[int, int]) -> Finding:
    gpu, driver = subject.accelerators.gpus[0], subject.accelerators.driver_cuda
    what = f"{gpu.name}, driver {gpu.driver}"
    wants = f"torch {subject.torch.version} was built for CUDA {_dotted(built)}"
    if driver is None:
        return say.error(
            f"{what}, but no libcuda.so.1 can be loaded", "install the driver's compute libraries"
        )
    what = f"{what} (CUDA {_dotted(driver)})"
    if driver[0] < built[0]:
        return say.error(f"{what}; {wants}", "upgrade the driver, or install torch for its CUDA")
    if driver < built:
        return say.warning(
            f"{what}; {wants}, which it runs except for code made at run time from PTX",
            "upgrade the driver if a kernel is refused",
        )
    return say.ok(f"{what}; {wants}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def check_triton(subject: Subject) -> Iterator[Finding]:
    """See whether Triton is there, which inductor and Triton attention need on a GPU."""
    say = Reporter("triton")
    for name in _TRITON:
        try:
            yield say.ok(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
        return
    if subject.device == "cpu":
        yield say.ok("not installed, and not needed on a CPU")
    elif subject.must_compile or subject.settings.config.attention == "triton":
        yield say.error("Triton isn't installed, and is asked for", "run `pip install triton`")
    else:
        yield say.warning(
            "Triton isn't installed: compile modes and attention give way to slower ones",
            "run `pip install triton`",
        )
