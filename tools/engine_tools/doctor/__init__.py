"""Checks a machine before an engine is started on it; never imports torch."""

from engine_tools.doctor.examination import CHECKS, Check, examine
from engine_tools.doctor.finding import Finding, Level, Reporter
from engine_tools.doctor.machine import Accelerators, Gpu, TorchBuild
from engine_tools.doctor.subject import Address, Subject

__all__ = [
    "Accelerators",
    "Address",
    "CHECKS",
    "Check",
    "Finding",
    "Gpu",
    "Level",
    "Reporter",
    "Subject",
    "TorchBuild",
    "examine",
]
