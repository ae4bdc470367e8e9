"""Check of the compiler that compiled modes need: it must be there, and be able to compile."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from shutil import which

from engine_tools.doctor.finding import Finding, Reporter
from engine_tools.doctor.subject import Subject

_TIMEOUT = 10
# What the headers of generated code come down to; missing ones are as common as no compiler.
_CPU_PROGRAM = "#include <cmath>\n#include <omp.h>\n#include <Python.h>\nint main() { return 0; }\n"
_GPU_PROGRAM = "#include <Python.h>\nint main(void) { return 0; }\n"


def check_compiler(subject: Subject) -> Iterator[Finding]:
    """Compile a few lines as inductor does for a CPU, or as Triton does beside a GPU."""
    say = Reporter("compiler")
    if not subject.may_compile:
        yield say.ok("not needed: the settings compile nothing with inductor")
        return
    on_cpu = subject.device == "cpu"
    name = _cxx() if on_cpu else _cc()
    problem, remedy = _problem(name, cpu=on_cpu)
    if not problem:
        yield say.ok(f"{which(name) or name} compiles")
    elif subject.settings.config.compilation_config.require_cache:
        yield say.ok(f"not needed: --require-cache starts from kept artifacts ({problem})")
    elif subject.must_compile:
        yield say.error(problem, remedy)
    else:
        yield say.warning(f"{problem}; the default compile mode gives way to another", remedy)


def _cxx() -> str:
    """Return the C++ compiler that inductor takes."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def _cc() -> str:
    """Return the C compiler that Triton takes."""
    return os.environ.get("CC") or which("gcc") or which("clang") or "gcc"


def _problem(name: str, *, cpu: bool) -> tuple[str, str]:
    """Return why a compiler can't be used and what to do; two empty texts if it can."""
    variable, package = ("CXX", "g++") if cpu else ("CC", "gcc")
    language = ["-x", "c++", "-std=c++20", "-fopenmp"] if cpu else ["-x", "c"]
    headers = f"-I{sysconfig.get_path('include')}"
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the user's environment names
            [name, *language, "-fsyntax-only", headers, "-"],
            input=_CPU_PROGRAM if cpu else _GPU_PROGRAM,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except OSError as error:
        return (
            f"compiler {name!r} can't be run: {error.strerror}",
            f"install {package}, or name a compiler in {variable}",
        )
    except subprocess.TimeoutExpired:
        return f"compiler {name!r} took over {_TIMEOUT} s for a line", "look at the machine's load"
    if done.returncode == 0:
        return "", ""
    lines = done.stderr.splitlines()
    said = next((line for line in lines if "error" in line), next(iter(lines), "no word of why"))
    if "Python.h" in said:
        return "Python's headers are missing (Python.h)", "install python3-dev for this Python"
    return f"compiler {name!r} fails: {said}", f"repair it, or name another in {variable}"
