"""Runs the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from engine.errors import EngineError
from engine_tools.doctor.compilers import check_compiler
from engine_tools.doctor.finding import Finding, Level
from engine_tools.doctor.folders import check_cache, check_temporary, check_user
from engine_tools.doctor.listening import check_address
from engine_tools.doctor.memory import check_memory
from engine_tools.doctor.model import check_model
from engine_tools.doctor.plugins import check_plugins
from engine_tools.doctor.subject import Subject
from engine_tools.doctor.versions import check_device, check_requirements, check_triton

Check = Callable[[Subject], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    check_requirements,
    check_device,
    check_triton,
    check_compiler,
    check_plugins,
    check_user,
    check_cache,
    check_temporary,
    check_address,
    check_model,
    check_memory,
)


def examine(subject: Subject, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Return what every check finds; one that fails itself is a finding too."""
    findings: list[Finding] = []
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            findings.extend(check(subject))
        except EngineError as error:
            findings.append(Finding(name, Level.ERROR, str(error), "correct what it names"))
        # A check meets broken machines; its own failure must not hide what the others find.
        except Exception as error:  # noqa: BLE001 - see above
            what = f"the check itself failed: {type(error).__name__}: {error}"
            findings.append(Finding(name, Level.ERROR, what, "please report this"))
    return findings
