"""Runs every check."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine_tools.doctor.findings import Finding, Patient
from engine_tools.doctor.machine import (
    check_compiler,
    check_gpu,
    check_libraries,
    check_memory,
    check_user,
)
from engine_tools.doctor.surroundings import check_cache, check_model, check_plugins, check_port

CHECKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    check_libraries,
    check_plugins,
    check_gpu,
    check_compiler,
    check_user,
    check_cache,
    check_memory,
    check_model,
    check_port,
)


def examine(patient: Patient) -> list[Finding]:
    """Return what every check finds; nothing is loaded."""
    return [finding for check in CHECKS for finding in check(patient)]
